"""The folder of builds that this program installs, ``<root>/<platform>-<backend>/<build>/`` each, and its memory.

The file in it remembers everything about engines.
"""

from __future__ import annotations

from pathlib import Path

from appliance.core.builds import MANIFEST
from appliance.features.engines.core.state import EngineState, Learnt, reduce
from appliance.platform.home import ENGINES_VARIABLE
from appliance.store.shelf import VersionShelf
from appliance.store.version_file import VersionFile


class StateFile(VersionFile[EngineState, Learnt]):
    """One such file, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, EngineState(), reduce, lost="engines are proven again")


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
