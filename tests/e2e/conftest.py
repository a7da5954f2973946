"""The installed program with real engines and the starter model."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import pytest
from program import COMMAND, REQUIRED, Server

from appliance.engines import embedded
from appliance.engines.found import EMBEDDED, list_engines


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if not COMMAND.is_file():
        pytest.fail(f"{COMMAND} is missing; install the project: pip install --no-build-isolation -e .")


def _missing(what: str) -> NoReturn:
    message = f"{what} is not on this machine"
    if os.environ.get(REQUIRED):
        pytest.fail(message)
    pytest.skip(message)


def _find_built() -> str | None:
    """A llama-server that was compiled and is whole: the build for the processor, else another, else from PATH."""
    found = [engine for engine in list_engines() if engine.name != EMBEDDED and not engine.damage]
    return next((engine.command[0] for engine in sorted(found, key=lambda engine: engine.backend != "cpu")), None)


@pytest.fixture(scope="session")
def built_engine() -> str:
    """The path of a real llama-server."""
    return _find_built() or _missing("a compiled llama-server (llama-builds/build.py makes one)")


def _folder_of(backend: str) -> Path:
    """A build that was compiled here or installed, and is whole."""
    for engine in list_engines():
        if engine.backend == backend and engine.folder is not None and not engine.damage:
            return Path(engine.folder)
    _missing(f"a build for {backend} (llama-builds/build.py --backend {backend} makes one)")


@pytest.fixture(scope="session")
def cpu_build() -> Path:
    """The folder of a real build for processors."""
    return _folder_of("cpu")


@pytest.fixture(scope="session")
def vulkan_build() -> Path:
    """The folder of a real build for Vulkan."""
    return _folder_of("vulkan")


@pytest.fixture(scope="session")
def lavapipe() -> dict[str, str]:
    """The environment in which Mesa's software renderer is the only Vulkan device.

    What it compiles is kept where Mesa keeps it for this user: without that, every first use takes a minute.
    """
    drivers = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if not drivers:
        _missing("Mesa's software renderer for Vulkan (Debian: mesa-vulkan-drivers)")
    kept = os.environ.get("MESA_SHADER_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"VK_DRIVER_FILES": str(drivers[0]), "GGML_VK_VISIBLE_DEVICES": "0", "MESA_SHADER_CACHE_DIR": kept}


@pytest.fixture(scope="session", params=[EMBEDDED, "built"])
def engine(request: pytest.FixtureRequest) -> str:
    """A value for ``--engine``, each in turn; "any" for a test with `program.one_engine`."""
    if request.param == "any" and (found := _find_built()):
        return found
    if request.param == "built":
        return request.getfixturevalue("built_engine")
    return EMBEDDED if embedded.available() else _missing("the embedded engine")


@pytest.fixture(scope="session")
def every_engine() -> list[str]:
    """Values for ``--engine``: all that are here."""
    found = [engine for engine in (EMBEDDED if embedded.available() else None, _find_built()) if engine]
    if not found or (len(found) < 2 and os.environ.get(REQUIRED)):
        _missing("an engine")
    return found


@pytest.fixture(scope="session")
def server(engine: str, tmp_path_factory: pytest.TempPathFactory, long_lived: set[int]) -> Generator[Server]:
    """One ``serve`` with the starter model for all tests that change nothing others could notice."""
    folder = tmp_path_factory.mktemp("server")
    argv = ["serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--preload", "starter"]
    with Server(argv, folder) as running:
        long_lived.add(running.process.pid)
        yield running.wait_listening()
        running.process.terminate()
        assert running.wait(15) == (1 if sys.platform == "win32" else 0), running.told()
