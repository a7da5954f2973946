"""The file that remembers everything about engines, in the folder of installed builds."""

from __future__ import annotations

from pathlib import Path

from appliance.features.engines.core.events import Learnt, reduce
from appliance.features.engines.core.state import EngineState
from appliance.store.version_file import WAIT, VersionFile


class StateFile(VersionFile[EngineState, Learnt]):
    """One such file, which need not be there yet."""

    def __init__(self, folder: Path, *, wait: float = WAIT) -> None:
        super().__init__(folder, EngineState(), reduce, lost="engines are proven again", wait=wait)
