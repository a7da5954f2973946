"""Configuration files of fake engines, and what is asked of a server that reads them again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from config_files import ConfigFile
from http_harness import CHAT, Appliance, chat
from waiting import until

RELOAD = "/api/config/reload"


class File:
    """A configuration file whose models are fake engines."""

    def __init__(self, path: Path, command: Sequence[str], model_file: Path) -> None:
        self.path = path
        self._file = ConfigFile(path, *command, "--model", model_file)
        self.cmd = self._file.cmd

    def write(self, models: dict[str, Sequence[str] | dict[str, object]], *, swap: bool = False, **top: object) -> Path:
        """A model is the flags of its engine, or its keys. They all run side by side unless they ``swap``."""
        groups = {"all": {"swap": swap, "members": sorted(models)}}
        self._file.write(models, **{"groups": groups, **top})
        return self.path


def pid(server: Appliance, model: str) -> int | None:
    return getattr(server.fleet.known(model), "pid", None)


async def load(server: Appliance, *models: str) -> list[int | None]:
    for model in models:
        await server.good("POST", CHAT, chat(model))
    return [pid(server, model) for model in models]


async def reload(server: Appliance) -> dict[str, object]:
    return (await server.good("POST", RELOAD)).json


async def wait_state(server: Appliance, model: str, *states: str) -> None:
    await until(lambda: server.state(model) in states, within=10, changed=server.fleet.wait_changed)


def program_log(server: Appliance) -> str:
    return "\n".join(line.text for line in server.traffic.program_log.since(0))
