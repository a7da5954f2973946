"""The program as a part of another application: docs/embedding.md, its examples and its promises."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from program import COMMAND, fresh_environment, run_command

PATIENCE = 30.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedding.md"


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    argv = [str(COMMAND), "serve", "--port", "0", "--no-stores", "--ready-file", str(tmp_path / "ready"), *options]
    environment = fresh_environment(tmp_path) | (env or {})
    return subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)


def url_of(tmp_path: Path) -> str:
    until((tmp_path / "ready").exists)
    return str(json.loads((tmp_path / "ready").read_bytes())["url"])


def example(language: str) -> str:
    [code] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.mark.parametrize("language", ["python", pytest.param("javascript", marks=pytest.mark.needs("node"))])
def test_the_examples_of_the_page_work(tmp_path: Path, language: str) -> None:
    program = sys.executable if language == "python" else "node"
    file = tmp_path / "example"
    file.write_text(example(language), "utf-8")
    environment = fresh_environment(tmp_path) | {"LLAMA_APPLIANCE": str(COMMAND), "TMPDIR": str(tmp_path)}
    done = subprocess.run([program, str(file)], env=environment, capture_output=True, text=True, timeout=60)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "appliance" in said[0].lower()
    assert said[1] == "exit status 0"


def test_it_writes_nothing_outside_its_home(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with start(tmp_path, "--home", str(home), env={"HOME": str(elsewhere), "XDG_CACHE_HOME": str(elsewhere)}) as server:
        body = json.dumps({"model": "starter", "prompt": "Hi", "max_tokens": 2}).encode()
        with urlopen(Request(url_of(tmp_path) + "/v1/completions", body), timeout=PATIENCE) as answer:
            assert json.load(answer)["choices"]
        assert (home / "data" / "llama-appliance").is_dir() or (home / "data").is_dir()
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"home", "elsewhere"}


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_it_ends_in_order_when_its_parent_ends(tmp_path: Path, how: str) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent,
        start(tmp_path, "--parent-pid", str(parent.pid)) as server,
    ):
        body = json.dumps({"model": "starter", "prompt": "Hi", "max_tokens": 2}).encode()
        with urlopen(Request(url_of(tmp_path) + "/v1/completions", body), timeout=PATIENCE) as answer:
            assert answer.status == 200
        children = psutil.Process(server.pid).children(recursive=True)
        assert children
        getattr(parent, how)()
        assert server.wait(PATIENCE) == 0
        assert not psutil.wait_procs(children, timeout=20)[1]
        assert not (tmp_path / "ready").exists()


def test_the_key_of_the_variable_is_asked_for_and_not_passed_on(tmp_path: Path) -> None:
    with start(tmp_path, "--api-key-env", "MY_KEY", env={"MY_KEY": "sesame"}) as server:
        url = url_of(tmp_path) + "/v1/completions"
        body = json.dumps({"model": "starter", "prompt": "Hi", "max_tokens": 2}).encode()
        with pytest.raises(HTTPError) as caught:
            urlopen(Request(url, body), timeout=PATIENCE)
        with caught.value as refused:
            assert refused.status == 401
        with urlopen(Request(url, body, {"Authorization": "Bearer sesame"}), timeout=PATIENCE) as answer:
            assert answer.status == 200
        for child in psutil.Process(server.pid).children(recursive=True):
            assert "sesame" not in child.environ().values()
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0


def test_an_old_ready_file_is_gone_before_the_program_listens_and_messages_are_json(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("old")
    with start(tmp_path, "--log-json") as server:
        until(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text() != "old")
        assert json.loads((tmp_path / "ready").read_bytes())["pid"] == server.pid
        if os.name == "posix":
            assert (tmp_path / "ready").stat().st_mode & 0o777 == 0o600
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert server.stderr is not None
        lines = [json.loads(line) for line in server.stderr]
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
