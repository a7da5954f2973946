"""The engines of this machine for the rest of the program, which knows `appliance.fleet.chooser` alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.core.engine import Engine
from appliance.errors import EngineNotFound
from appliance.features.engines.found import EngineFolders, find_engine, is_named, list_engines
from appliance.platform.home import engines_folder

if TYPE_CHECKING:
    from appliance.core.machine_look import MachineLook
    from appliance.core.records.history import Tell
    from appliance.features.engines.owner import Engines
    from appliance.platform.gpus import Gpus
    from appliance.store.carried import CarriedEngines


class FoundHere(Struct, frozen=True):
    """Some engines, and the folder with what is remembered of them. ``find`` lists them, best place first."""

    find: Callable[[], list[Engine]]
    folder: Path
    only: bool = False  # it is one that somebody named, and nothing else will do

    def open(self, tell: Tell | None = None) -> AbstractAsyncContextManager[Engines]:
        from appliance.core.records.history import told_to_nobody
        from appliance.features.engines.owner import open_engines  # with trio, which `version` does without
        from appliance.features.engines.shelf import StateFile

        return open_engines(self.find, StateFile(self.folder), only=self.only, tell=tell or told_to_nobody)


class MachineEngines:
    """Builds, what is on PATH, and the engine inside the program."""

    def find(self, named: str | None) -> Engine:
        return find_engine(named)

    def ids(self) -> tuple[str, ...]:
        return tuple(each.id for each in list_engines())

    def found(self, named: str | None, *, optional: bool = False) -> FoundHere:
        try:
            engine = find_engine(named)
        except EngineNotFound:
            if not optional:
                raise
        else:
            if is_named(named):
                return FoundHere(lambda: [engine], engines_folder(), only=True)
        return FoundHere(list_engines, engines_folder())

    def carried(self, packaged: Path | None) -> CarriedEngines:
        from appliance.features.engines.carried import CarriedHere
        from appliance.features.engines.shelf import Shelf

        roots = [root for root, _ in EngineFolders.of_this_machine().roots()]
        return CarriedHere(Shelf(engines_folder()), roots, packaged and packaged / "engines")

    def gpus(self) -> AbstractAsyncContextManager[Gpus]:
        from appliance.features.engines.drivers import open_gpus

        return open_gpus()

    async def look(self) -> MachineLook:
        from appliance.features.engines.drivers import look
        from appliance.platform.children import open_children

        async with open_children() as children:
            return await look(children)

    def recover(self) -> None:
        from appliance.features.engines.shelf import Shelf

        Shelf(engines_folder()).recover()
