"""A preset file that changes while the program runs: what is told to do so, and what goes on running."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Server, StartServer, answer, http
from waiting import wait

from appliance.engines.named import ENGINE_VARIABLE

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
VERBS = {
    "serve": ("serve", "--no-starter", "--no-stores", "--listen", "127.0.0.1:0"),
    "llama-server": ("llama-server", "--port", "0"),
}

Told = Callable[[Server], None]


def by_signal(server: Server) -> None:
    server.signal(signal.SIGHUP)


def by_request(server: Server) -> None:
    assert answer(server, "/api/config/reload")["success"] is True


def by_list(server: Server) -> None:
    assert http(server, "GET", "/models?reload=1").status == 200


def by_nothing(server: Server) -> None:
    """The file is watched."""


@pytest.fixture
def file(tmp_path: Path, starter_model: Path) -> Callable[[str], Path]:
    """Write the preset file: sections ``a`` and ``b``, and more."""

    def write(more: str = "", *, b: int = 64) -> Path:
        path = tmp_path / "p.ini"
        path.write_text(f"[a]\nm = {starter_model}\nc = 64\n[b]\nm = {starter_model}\nc = {b}\n{more}")
        return path

    return write


@pytest.fixture
def presets(start_server: StartServer, fake_engine: Path, tmp_path: Path) -> StartServer:
    """A verb with that file."""

    def start(verb: str, *words: str) -> Server:
        argv = (*VERBS[verb], "--models-preset", str(tmp_path / "p.ini"), *words)
        return start_server(*argv, env={ENGINE_VARIABLE: str(fake_engine)})

    return start


def ids(server: Server) -> set[str]:
    return {entry["id"] for entry in http(server, "GET", "/models").json()["data"]}


def ask(server: Server, model: str) -> None:
    answer(server, "/v1/chat/completions", **CHAT, model=model)


@pytest.mark.parametrize(
    ("verb", "tell"),
    [("serve", by_signal), ("serve", by_request), ("serve", by_nothing), ("llama-server", by_list)],
)
def test_what_has_not_changed_goes_on(presets: StartServer, file: Callable[..., Path], verb: str, tell: Told) -> None:
    if tell is by_signal and sys.platform == "win32":
        pytest.skip("there is no such signal there")
    path = file()
    server = presets(verb, *(("--watch-config",) if tell is by_nothing else ()))
    ask(server, "a")
    ask(server, "b")
    (before,) = [child.pid for child in server.children() if "a" in child.cmdline()]
    old = [child for child in server.children() if "b" in child.cmdline()]
    file(b=96, more=f"[c]\nm = {path}\n")
    tell(server)
    wait(lambda: {"a", "b", "c"} <= ids(server), told=server.told)
    wait(lambda: not any(child.is_running() for child in old), told=server.told)
    ask(server, "b")
    listed = http(server, "GET", "/models").json()["data"]
    assert "96" in next(entry["status"]["args"] for entry in listed if entry["id"] == "b")
    assert [child.pid for child in server.children() if "a" in child.cmdline()] == [before]


def test_a_mistake_is_told_and_changes_nothing(presets: StartServer, file: Callable[..., Path]) -> None:
    file()
    server = presets("serve", "--watch-config")
    before = ids(server)
    file("[c]\nfoo-bar = 1\n")
    for method, target in (("POST", "/api/config/reload"), ("GET", "/models?reload=1")):
        refused = http(server, method, target)
        assert refused.status == 400
        assert "llama-server has no option 'foo-bar'" in refused.json()["error"]["message"]
    assert ids(server) == before
    wait(lambda: "the presets were not read again, the old ones stay" in server.told(), told=server.told)
    file("[c]\nm = /x\n")
    wait(lambda: "c" in ids(server), told=server.told)
