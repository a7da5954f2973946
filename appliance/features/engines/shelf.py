"""The folder of builds that this program installs, ``<root>/<platform>-<backend>/<build>/`` each."""

from __future__ import annotations

from pathlib import Path

from appliance.core.builds import MANIFEST
from appliance.features.engines.core.events import Learnt
from appliance.features.engines.core.state import EngineState
from appliance.features.engines.engine_state import StateFile
from appliance.platform.home import ENGINES_VARIABLE
from appliance.store.shelf import VersionShelf


class Shelf(VersionShelf[EngineState, Learnt]):
    """One such folder. ``downloads`` has archives, and what has come of them."""

    verbs = "llama-appliance engines"
    variable = ENGINES_VARIABLE

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.downloads = root / ".downloads"

    @property
    def state(self) -> StateFile:
        return StateFile(self.root)

    def builds_in(self, folder: Path) -> list[str]:
        found = [path.parent for path in folder.glob(f"*/*/{MANIFEST}")]
        return sorted(path.relative_to(folder).as_posix() for path in found if not path.parent.name.startswith("."))
