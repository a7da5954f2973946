"""llama.cpp's own page, built from its source package, in a real browser against the stand-in for llama-server.

`python3 bootstrap.py test --llama-page` builds the page and runs this; `tests/web/llama_page.mjs` says what is done.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from program import Server, StartServer

from appliance.engines.named import ENGINE_VARIABLE

pytestmark = pytest.mark.needs("node", "chromium", "page-packages")
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests" / "web" / "llama_page.mjs"
TIME = 240
SLOW = {"FAKE_TOKENS": "60", "FAKE_TOKEN_DELAY": "0.25"}
ENDLESS = {**SLOW, "FAKE_TOKENS": "4000"}

Serve = Callable[..., Server]


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Path:
    """The folder of the page."""
    folder: str = request.config.getoption("--llama-page")
    if not folder:
        pytest.skip("needs llama.cpp's page: python3 bootstrap.py test --llama-page")
    assert (Path(folder) / "index.html").is_file(), f"{folder} is not the page"
    return Path(folder)


@pytest.fixture
def serve(page: Path, start_server: StartServer, fake_engine: Path) -> Serve:
    """The stand-in with the page, on the scripted engine unless another is named."""

    def start(*words: str, engine: str = str(fake_engine), **env: str) -> Server:
        where = ("--host", "127.0.0.1", "--port", "0", "--path", str(page), "--threads", "1")
        return start_server("llama-server", *where, *words, env={ENGINE_VARIABLE: engine, **env})

    return start


def play(scenario: str, server: Server, home: Path) -> None:
    done = subprocess.run(
        ["timeout", str(TIME), "node", str(SCENARIOS), scenario, server.url],
        env={**os.environ, "HOME": str(home), "PICTURE": f"/tmp/llama-page-{scenario}.png"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.endswith(">> passed\n")) == (0, True), (
        done.stdout + done.stderr + server.told()
    )


def test_one_model_answers_and_the_conversation_is_there_after_a_reload(
    serve: Serve, built_engine: str, starter_model: Path, tmp_path: Path
) -> None:
    play("single", serve("--model", str(starter_model), engine=built_engine), tmp_path)


@pytest.mark.parametrize("scenario", ["resume", "stop"])
def test_an_answer_outlives_a_reload_and_ends_when_it_is_stopped(serve: Serve, scenario: str, tmp_path: Path) -> None:
    write_model(tmp_path / "small.gguf")
    play(scenario, serve("--model", "small.gguf", **(SLOW if scenario == "resume" else ENDLESS)), tmp_path)


@pytest.mark.parametrize("scenario", ["router", "resume"])
def test_models_are_chosen_loaded_and_unloaded(
    serve: Serve, built_engine: str, starter_model: Path, scenario: str, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("alpha", "beta"):
        (models / f"{name}.gguf").symlink_to(starter_model)
    real = {"engine": built_engine} if scenario == "router" else SLOW
    play(scenario, serve("--models-dir", str(models), "--models-max", "2", **real), tmp_path)
