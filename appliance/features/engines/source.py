"""The engines of this machine for the rest of the program, which knows `appliance.fleet.chooser` alone."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from msgspec import Struct

from appliance.catalog.sources import STARTER
from appliance.core.engine import Engine
from appliance.core.records.history import Tell, told_to_nobody
from appliance.engines.found import Finder, find_engine, finder, installed_folder, list_engines
from appliance.engines.owner import Engines, open_engines
from appliance.errors import EngineNotFound
from appliance.store.engine_state import StateFile


class Found(Struct, frozen=True):
    """Some engines, and the folder with what is remembered of them."""

    finder: Finder
    folder: Path

    def open(self, tell: Tell = told_to_nobody) -> AbstractAsyncContextManager[Engines]:
        file, only = StateFile(self.folder), self.finder.only
        return open_engines(self.finder.find, file, starter=STARTER, only=only, tell=tell)


class MachineEngines:
    """Builds, what is on PATH, and the engine inside the program."""

    def find(self, named: str | None) -> Engine:
        return find_engine(named)

    def ids(self) -> tuple[str, ...]:
        return tuple(each.id for each in list_engines())

    def found(self, named: str | None, *, optional: bool = False) -> Found:
        try:
            return Found(finder(named), installed_folder())
        except EngineNotFound:
            if not optional:
                raise
        return Found(Finder(list_engines), installed_folder())

    def recover(self) -> None:
        from appliance.engines.shelf import Shelf

        Shelf(installed_folder()).recover()
