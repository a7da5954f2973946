"""The program as a part of another application: the promises of docs/embedding.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from program import Server, run_command, wait_gone
from slow import one_of
from waiting import PATIENCE

ASKED = json.dumps({"model": "starter", "prompt": "Hi", "max_tokens": 2}).encode()


class Embedded(Server):
    """As an application starts it: with a file that says when it is ready, and where."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.ready = folder / "ready"
        super().__init__(
            ["serve", "--port", "0", "--no-stores", "--ready-file", str(self.ready), *options], folder, env
        )

    def ask(self, **headers: str) -> int:
        """The status of a question, once the file is there."""
        self.wait_for(self.ready.exists)
        request = Request(f"{json.loads(self.ready.read_bytes())['url']}/v1/completions", ASKED, headers)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        assert self.wait(PATIENCE) == 0


def test_it_writes_nothing_outside_its_home(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Embedded(tmp_path, "--home", str(home), HOME=str(elsewhere), XDG_CACHE_HOME=str(elsewhere)) as server:
        assert server.ask() == 200
        assert (home / "data").is_dir()
        server.end()
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"home", "elsewhere", server.errors.name}


@pytest.mark.parametrize("how", one_of(["terminate", "kill"]))
def test_it_ends_in_order_when_its_parent_ends(tmp_path: Path, how: str) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent,
        Embedded(tmp_path, "--parent-pid", str(parent.pid)) as server,
    ):
        assert server.ask() == 200
        children = server.children()
        assert children
        getattr(parent, how)()
        assert server.wait(PATIENCE) == 0
        wait_gone(children)
        assert not server.ready.exists()


def test_the_key_of_the_variable_is_asked_for_and_not_passed_on(tmp_path: Path) -> None:
    with Embedded(tmp_path, "--api-key-env", "MY_KEY", MY_KEY="sesame") as server:
        assert [server.ask(), server.ask(Authorization="Bearer sesame")] == [401, 200]
        assert all("sesame" not in child.environ().values() for child in server.children())
        server.end()


def test_an_old_ready_file_is_gone_before_the_program_listens_and_messages_are_json(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("old")
    with Embedded(tmp_path, "--log-json") as server:
        server.wait_for(lambda: server.ready.exists() and server.ready.read_text() != "old")
        assert json.loads(server.ready.read_bytes())["pid"] == server.process.pid
        if os.name == "posix":
            assert server.ready.stat().st_mode & 0o777 == 0o600
        server.end()
    lines = [json.loads(line) for line in server.told().splitlines()]
    assert lines[0]["message"].startswith("llama-appliance ")
    assert {"time", "level", "message"} == set(lines[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "0", "--listen", "127.0.0.1:0"), "--port 0 is short for --listen"),
        (("--parent-pid", "2147483647"), "there is no such process"),
        (("--api-key-env", "NOT_SET"), "this environment variable is not set"),
        (("--port", "0", "--ready-file", "missing/ready"), "--ready-file"),
    ],
)
def test_a_mistake_is_named_and_ends_with_2(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = run_command("serve", "--no-stores", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_mistake_is_json_where_messages_are(tmp_path: Path) -> None:
    done = run_command("serve", "--log-json", "--parent-pid", "2147483647", cwd=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stderr)["level"] == "error"
