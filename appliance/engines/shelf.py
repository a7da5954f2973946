"""The folder of builds that this program installs, ``<root>/<platform>-<backend>/<build>/`` each."""

from __future__ import annotations

from pathlib import Path

from appliance.core.engines.builds import MANIFEST
from appliance.core.engines.events import Learnt
from appliance.core.engines.state import EngineState
from appliance.engines.found import FOLDER_VARIABLE
from appliance.store.engine_state import StateFile
from appliance.store.shelf import VersionShelf


class Shelf(VersionShelf[EngineState, Learnt]):
    """One such folder. ``downloads`` has archives, and what has come of them."""

    verbs = "llama-appliance engines"
    variable = FOLDER_VARIABLE

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.downloads = root / ".downloads"

    @property
    def state(self) -> StateFile:
        return StateFile(self.root)

    def builds_in(self, folder: Path) -> list[str]:
        found = [path.parent for path in folder.glob(f"*/*/{MANIFEST}")]
        return sorted(path.relative_to(folder).as_posix() for path in found if not path.parent.name.startswith("."))
