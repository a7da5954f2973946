"""Fixtures of the page's tests: the browser's scenarios, a server with a scripted engine, and a hub."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from gguf_files import write_model
from hub_process import FakeHub, fake_hub
from program import Server, StartServer

from appliance.core.fit.recommended import RECOMMENDED
from appliance.engines.found import ENGINE_VARIABLE

PLAY = Path(__file__).resolve().parents[1] / "web" / "play.mjs"
TIME = 120
SIZE = 24 << 20
"""Bytes of the hub's model, about."""

Play = Callable[..., None]
LOOKS = ("en-light-1280", "de-dark-320")
"""Language, theme and width in which the page is tested; `tests/web/words.mjs` reads them from LOOK."""
ONE_LOOK = "one"
"""One of them, always the same for a scenario, so that each run of all tests has both."""

in_both = pytest.mark.parametrize("browser", ["chromium", pytest.param("firefox", marks=pytest.mark.needs("firefox"))])
"""For a test of one of the main flows: it runs in both browsers."""


@pytest.fixture
def browser() -> str:
    """What `play` drives, where the test does not say it; PAGE_BROWSER=firefox is for looking."""
    return os.environ.get("PAGE_BROWSER", "chromium")


@pytest.fixture
def play(tmp_path: Path, browser: str, look: str) -> Play:
    """Run a scenario of `tests/web/scenarios`, named as FILE.FUNCTION.

    ``steps`` are done when it asks for them by name, ``within`` runs the browser somewhere else.
    """

    def run(
        scenario: str, server: Server, *more: str, within: Sequence[str] = (), **steps: Callable[[], object]
    ) -> None:
        command = [*within, "node", str(PLAY), *scenario.split("."), server.url, *more]
        seen = LOOKS[zlib.crc32(scenario.encode()) % len(LOOKS)] if look == ONE_LOOK else look
        picture = f"/tmp/page-{scenario}-{seen}-{browser}.png"
        told_so = {"BROWSER": browser, "LOOK": seen, "HOME": str(tmp_path), "PICTURE": picture}
        environment = {"SEED": "7", **os.environ, **told_so}
        told: list[str] = []
        with subprocess.Popen(
            ["timeout", str(TIME), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                told.append(line)
                print(line, end="")
                step = steps.get(line.removeprefix(">> ").strip())
                if step is not None:
                    step()
                    process.stdin.write("done\n")
                    process.stdin.flush()
        assert process.returncode == 0, "".join(told) + server.told()
        assert told[-1] == ">> passed\n"

    return run


@pytest.fixture
def serve_fake(start_server: StartServer, fake_engine: Path, tmp_path: Path) -> StartServer:
    """A server with one model, ``small``, on the scripted engine; two more models lie beside it."""
    for name in ("small", "other", "third"):
        write_model(tmp_path / f"{name}.gguf")

    def serve(*more: str, listen: str = "127.0.0.1:0", under: Sequence[str] = (), **env: str) -> Server:
        words = ("serve", "--listen", listen, "--model", "small.gguf", "--no-starter", "--no-stores", *more)
        return start_server(*words, env={ENGINE_VARIABLE: str(fake_engine), **env}, under=under)

    return serve


@pytest.fixture
def hub(tmp_path: Path) -> Generator[FakeHub]:
    """A hub with one model, and with other files under the names of the recommended ones."""
    write_model(tmp_path / "hub" / "acme/big-GGUF" / "big-Q8_0.gguf", weights=SIZE // 4)
    for model in RECOMMENDED:
        write_model(tmp_path / "hub" / model.repository / model.file)
    with fake_hub(tmp_path / "hub") as running:
        yield running
