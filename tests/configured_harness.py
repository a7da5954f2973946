"""Fleets of configured models: their configuration is read as a file would be, their processes are real."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio
from command_lines import command_line
from msgspec import structs
from waiting import until

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.core.config.load import SourceFile, load
from appliance.core.config.types import Config
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.fleet.owner import Fleet, open_fleet
from appliance.fleet.status import ChildStatus
from appliance.platform.ports import free_port
from appliance.upstream.client import Address, HttpCall

PLAIN = Path(__file__).parent / "fakes" / "plain_server.py"
PYTHON = f"{sys.executable} -S -E"
WINDOWS = sys.platform == "win32"
KILLED = "exit status 15" if WINDOWS else "SIGKILL"
"""The words for a server that psutil has killed."""
EVERYTHING = 25.0
"""Seconds that any one test may take."""

Settings = dict[str, object]


def script(code: str) -> str:
    """The beginning of a command line that runs this code; further words are its arguments."""
    return command_line([sys.executable, "-S", "-E", "-c", code])


SLEEP = script("import time; time.sleep(1000)")


class Event(NamedTuple):
    """What a server wrote down about itself; ``at`` is on the clock of `time.monotonic`."""

    what: str
    pid: int
    at: float


class World:
    """One fleet that follows a configuration."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.folder = folder
        self.fleet = fleet
        self.models: dict[str, Model] = {}

    def adopt(self, models: Mapping[str, Settings], changes: Mapping[str, object] | None = None, **top: object) -> None:
        """``changes`` are made after the configuration was read: times that are shorter than a file may say."""
        text = json.dumps({"models": models, **top})  # JSON is YAML
        config = load([SourceFile("config.yaml", text)], {}, windows=sys.platform == "win32").require()
        config = _changed(config, changes or {})
        models_of = Catalog(ModelFolders(starter=None), config).snapshot.models
        self.models = {model.id: model for model in models_of}
        self.fleet.adopt(config, models_of)

    def lease(self, model: str) -> AbstractAsyncContextManager[Address]:
        return self.fleet.lease(self.models[model])

    async def load(self, *models: str) -> None:
        for model in models:
            await self.fleet.load(self.models[model])

    def status(self, model: str) -> ChildStatus:
        status = self.fleet.known(model)
        assert status is not None, f"{model} never ran"
        return status

    def state(self, model: str) -> str:
        status = self.fleet.known(model)
        return status.state if status else "unknown"

    def waiting(self, model: str) -> int:
        status = self.fleet.known(model)
        return status.waiting if status else 0

    def loaded(self) -> set[str]:
        return {status.model for status in self.fleet.status() if status.state == "loaded"}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the fleet knows."""
        while not condition():
            await self.fleet.wait_changed()

    async def until_state(self, model: str, state: str) -> None:
        await self.until(lambda: self.state(model) == state)

    def log(self, model: str) -> str:
        return "\n".join(self.fleet.logs.tail(model, 1000))

    async def until_logged(self, model: str, text: str) -> None:
        async for line in self.fleet.logs.follow(model):
            if text in line:
                return

    def events(self, name: str) -> list[Event]:
        path = self.folder / f"{name}.events"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [Event(what, int(pid), float(at)) for what, pid, at in map(str.split, lines)]

    def event(self, name: str, what: str) -> Event:
        """The last one of its kind."""
        found = [event for event in self.events(name) if event.what == what]
        assert found, f"{name} never told of '{what}': {self.events(name)}"
        return found[-1]

    async def until_event(self, name: str, what: str) -> Event:
        """Wait for something that only the server itself knows."""
        await until(lambda: any(event.what == what for event in self.events(name)))
        return self.event(name, what)


def _changed(config: Config, changes: Mapping[str, object]) -> Config:
    of_models = {name: value for name, value in changes.items() if name in config.models}
    models = dict(config.models)
    for name, settings in of_models.items():
        models[name] = structs.replace(models[name], **settings)
    others = {name: value for name, value in changes.items() if name not in of_models}
    return structs.replace(config, models=models, **others)


class Fleets:
    """Opens worlds, and writes the configuration of servers for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, name: str, port: int | str, **options: object) -> str:
        """The command line of a plain server that tells its events under ``name``."""
        told = {"events": self.folder / f"{name}.events", "port": port, **options}
        return command_line(
            [sys.executable, "-S", "-E", str(PLAIN), *(f"{key}={value}" for key, value in told.items())]
        )

    def server(self, name: str, settings: Mapping[str, object] | None = None, **options: object) -> Settings:
        """The configuration of a plain server on a port of its own; ``within`` is a command that has one for ``{}``."""
        port, within = options.pop("port", None) or free_port(), str(options.pop("within", "{}"))
        cmd = within.format(self.command(name, str(port), **options))
        return {"cmd": cmd, "proxy": f"http://127.0.0.1:{port}", **(settings or {})}

    @asynccontextmanager
    async def open(
        self, models: Mapping[str, Settings], changes: Mapping[str, object] | None = None, **top: object
    ) -> AsyncGenerator[World]:
        with trio.fail_after(EVERYTHING):
            async with open_fleet(FleetSettings(threads=1), None) as fleet:
                world = World(self.folder, fleet)
                world.adopt(models, changes, **top)
                yield world


async def ask(address: Address, path: str = "/echo", body: bytes = b"hello", method: str = "POST") -> bytes:
    async with HttpCall(address, method, path, (), body) as response:
        assert response.status == 200, response.status
        return await response.read(1 << 20)
