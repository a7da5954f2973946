"""The installed program with real engines and the starter model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from program import COMMAND, Server

from appliance.engines import embedded
from appliance.engines.found import EXECUTABLE, Places, list_engines

REQUIRED = "LLAMA_APPLIANCE_REQUIRE_ENGINE"
"""Set where both engines must be there: a missing one is then a failure and not a skip."""

StartServer = Callable[..., Server]


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if not COMMAND.is_file():
        pytest.fail(f"{COMMAND} is missing; install the project: pip install --no-build-isolation -e .")


def _missing(what: str) -> None:
    message = f"{what} is not on this machine"
    if os.environ.get(REQUIRED):
        pytest.fail(message)
    pytest.skip(message)


def _built_engine() -> str:
    """A llama-server that was compiled: from the user's cache, else from PATH."""
    for engine in list_engines(Places.of_this_machine()):
        if engine.name != embedded_name():
            return engine.command[0]
    if on_path := shutil.which(EXECUTABLE):
        return on_path
    _missing("a compiled llama-server (llama-builds/build.py makes one)")
    raise AssertionError


def embedded_name() -> str:
    return "embedded"


@pytest.fixture(scope="session", params=["embedded", "built"])
def engine(request: pytest.FixtureRequest) -> str:
    """A value for ``--engine``."""
    if request.param == "built":
        return _built_engine()
    if not embedded.available():
        _missing("the embedded engine")
    return "embedded"


@pytest.fixture(scope="session")
def built_engine() -> str:
    return _built_engine()


@pytest.fixture
def start_server(tmp_path: Path) -> Generator[StartServer]:
    """Start ``serve`` or another verb that listens; everything is ended afterwards."""
    servers: list[Server] = []

    def start(*argv: str, env: dict[str, str] | None = None, listening: bool = True) -> Server:
        server = Server(argv, tmp_path, env)
        servers.append(server)
        return server.wait_listening() if listening else server

    yield start
    for server in servers:
        with server:
            pass


@pytest.fixture(scope="session")
def server(engine: str, tmp_path_factory: pytest.TempPathFactory, long_lived: set[int]) -> Generator[Server]:
    """One ``serve`` with the starter model for all tests that change nothing others could notice."""
    folder = tmp_path_factory.mktemp("server")
    argv = ["serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--preload", "starter"]
    with Server(argv, folder) as running:
        long_lived.add(running.process.pid)
        yield running.wait_listening()
        running.process.terminate()
        assert running.wait(15) == 0, running.told()
