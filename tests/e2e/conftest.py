"""The installed program with real engines and the starter model."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from config_files import ConfigFile
from needs import RENDERERS, compiled
from page_fixtures import browser, hub, play, serve_fake  # noqa: F401  fixtures of the tests of the page
from page_views import drawn, possible, touched
from program import ANY_PORT, COMMAND, Server, StartServer

from appliance.core.engine import EMBEDDED
from appliance.engines.found import ENGINE_VARIABLE
from appliance.features import embedded

EXAMPLE = "test_the_first_model_and_the_first_question"
"""The one test of the page that is not slow: a browser takes long to start."""
SCENARIOS = Path(__file__).resolve().parents[1] / "web" / "scenarios"


def pytest_itemcollected(item: pytest.Item) -> None:
    example = item.name.startswith(EXAMPLE) and "chromium" in item.name
    if "play" in getattr(item, "fixturenames", ()) and not (example or item.config.getoption("--landing")):
        item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "view" in metafunc.fixturenames:
        firefox = pytest.mark.needs("firefox")
        views = [pytest.param(view, marks=firefox if "firefox" in view else ()) for view in possible(main_flow=True)]
        metafunc.parametrize("view", views, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave each test of the page the views that this run has for it."""
    everything = config.getoption("--all") or bool({"LOOK", "PAGE_BROWSER"} & os.environ.keys())
    changed = changed_scenarios(os.environ.get("PAGE_SINCE", ""))
    seed = config.getoption("--landing")

    def not_played(item: pytest.Item) -> bool:
        if not isinstance(item, pytest.Function) or "view" not in item.fixturenames:
            return False
        view, main_flow = item.callspec.params["view"], item.get_closest_marker("main_flow") is not None
        text = inspect.getsource(item.function) + item.name
        if everything or any(re.search(rf'["-]{name}\.', text) for name in changed):
            return view not in possible(main_flow=main_flow)
        return view not in drawn(item.nodeid.replace(view, ""), seed, main_flow=main_flow)

    out = [item for item in items if not_played(item)]
    config.hook.pytest_deselected(items=out)
    gone = set(out)
    items[:] = [item for item in items if item not in gone]


def changed_scenarios(commit: str) -> set[str]:
    """Return the files of scenarios that a change since that commit touches."""
    if not commit:
        return set()
    command = ["git", "diff", "--name-only", commit]
    changed = subprocess.run(command, cwd=SCENARIOS, capture_output=True, check=True, text=True).stdout.splitlines()
    return touched(changed, {file.stem: file.read_text("utf-8") for file in SCENARIOS.glob("*.mjs")})


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if not COMMAND.is_file():
        pytest.fail(f"{COMMAND} is missing; install the project: pip install --no-build-isolation -e .")


@pytest.fixture(scope="session")
def built_engine() -> str:
    """The path of a real llama-server."""
    return str(next(compiled()))


@pytest.fixture(scope="session")
def cpu_build() -> Path:
    """The folder of a real build for processors."""
    return next(compiled("cpu")).parent


@pytest.fixture(scope="session")
def vulkan_build() -> Path:
    """The folder of a real build for Vulkan."""
    return next(compiled("vulkan")).parent


@pytest.fixture(scope="session")
def lavapipe() -> dict[str, str]:
    """The environment in which Mesa's software renderer is the only Vulkan device.

    What it compiles is kept where Mesa keeps it for this user: without that, every first use takes a minute.
    """
    driver = next(RENDERERS.glob("lvp_icd*.json"))
    kept = os.environ.get("MESA_SHADER_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"VK_DRIVER_FILES": str(driver), "GGML_VK_VISIBLE_DEVICES": "0", "MESA_SHADER_CACHE_DIR": kept}


@pytest.fixture(scope="session")
def every_engine() -> list[str]:
    """Values for ``--engine``: all that are here."""
    return [*([EMBEDDED] if embedded.available() else ()), str(next(compiled()))]


@pytest.fixture(scope="session")
def server(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One ``serve`` with the starter model for all tests that change nothing others could notice."""
    folder = tmp_path_factory.mktemp("server")
    argv = ["serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--preload", "starter"]
    with Server(argv, folder) as running:
        yield running.wait_listening()
        running.process.terminate()
        assert running.wait(15) == (1 if sys.platform == "win32" else 0), running.told()


@pytest.fixture
def serve(start_server: StartServer, fake_engine: Path) -> StartServer:
    """``serve`` at a free port, on the scripted engine or a real one; other keywords are its environment."""

    def start(*words: str, engine: str = "", limited: Callable[[], object] | None = None, **env: str) -> Server:
        threads = ("--threads", "1") if engine else ()
        env = {ENGINE_VARIABLE: engine or str(fake_engine), **env}
        return start_server("serve", *ANY_PORT, *threads, *words, env=env, limited=limited)

    return start


@pytest.fixture
def single(start_server: StartServer, engine: str, starter_model: Path) -> StartServer:
    """``llama-server`` with the starter model, once that is loaded; keywords are its environment."""

    def start(*words: str, **env: str) -> Server:
        argv = ("llama-server", "-m", str(starter_model), "-t", "1", "--port", "0", *words)
        server = start_server(*argv, env={ENGINE_VARIABLE: engine, **env})
        server.wait_healthy()
        return server

    return start


@pytest.fixture
def file(tmp_path: Path, fake_engine: Path, fake_model: Path) -> ConfigFile:
    """A configuration whose models are scripted engines."""
    return ConfigFile(tmp_path / "config.yaml", fake_engine, "--model", fake_model)
