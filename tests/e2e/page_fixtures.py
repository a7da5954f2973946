"""Fixtures of the page's tests: the browsers that play its scenarios, a server with a scripted engine, and a hub.

To start a browser takes as long as many a scenario. So each worker has one that plays them one after the other, each in
a context of its own. Pytest sorts the tests by the view that they share, and a worker starts another browser where the
view changes, where a scenario has failed, or where one needs a browser with other arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from gguf_files import write_model
from hub_process import FakeHub, fake_hub
from program import Server, StartServer

from appliance.engines.named import ENGINE_VARIABLE
from appliance.features.downloads.recommended import RECOMMENDED

PLAY = Path(__file__).resolve().parents[1] / "web" / "play.mjs"
SIZE = 24 << 20
"""Bytes of the hub's model, about."""
PASSED = ">> passed\n"

Play = Callable[..., None]


class Browser:
    """A browser that plays scenarios. One that fails ends it, and the next has a new one."""

    def __init__(self, view: str, home: Path, within: Sequence[str] = ()) -> None:
        """``view`` is a browser and a look, as in `page_views`; ``within`` is what runs it somewhere else."""
        name, _, look = view.partition("-")
        self._command = [*within, "node", str(PLAY)]
        self._env = {**os.environ, "BROWSER": name, "LOOK": look, "HOME": str(home)}
        self._process: subprocess.Popen[str] | None = None

    def play(self, job: Mapping[str, object], steps: Mapping[str, Callable[[], object]]) -> str:
        """Play one scenario and return what it said, of which the last line is PASSED."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                self._command, env=self._env,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        said, output = "", self._process.stdout
        assert output is not None
        try:
            self._send(json.dumps(job))
            for line in output:
                said += line
                if line == PASSED:
                    break
                print(line, end="")
                if step := steps.get(line.removeprefix(">> ").strip()):
                    step()
                    self._send("done")
        finally:
            if not said.endswith(PASSED):
                self.close()
        return said

    def _send(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it; a scenario that is not over fails."""
        if self._process is not None:
            with self._process:
                pass
            self._process = None


@pytest.fixture(scope="session")
def browser(view: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    with closing(Browser(view, tmp_path_factory.mktemp("browser"))) as running:
        yield running


@pytest.fixture
def play(tmp_path: Path, view: str, browser: Browser) -> Play:
    """Run a scenario of `tests/web/scenarios`, named as FILE.FUNCTION.

    It is given ``more``. ``steps`` are done when it asks for them by name. ``within`` runs a browser of its own.
    """

    def run(
        scenario: str, server: Server, *more: object, within: Sequence[str] = (), **steps: Callable[[], object]
    ) -> None:
        picture = f"/tmp/page-{scenario}-{view}.png"
        job = {"scenario": scenario, "url": server.url, "more": more, "picture": picture}
        with closing(Browser(view, tmp_path, within)) as own:
            said = (own if within else browser).play(job, steps)
        assert said.endswith(PASSED), said + server.told()

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
