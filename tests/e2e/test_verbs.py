"""Every verb against a running server and without one, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from program import (
    ANY_PORT,
    COMMAND,
    STARTER_QUESTION,
    Server,
    StartServer,
    fresh_environment,
    http,
    one_engine,
    run_command,
)
from waiting import wait

from appliance.core.settings import KEY_VARIABLE
from appliance.engines.found import ENGINE_VARIABLE

STRANGE = ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"})
Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def nobody_listens(free_port: object) -> str:
    assert callable(free_port)
    return f"http://127.0.0.1:{free_port()}"


@one_engine
def test_the_tour(serve: StartServer, engine: str, verb: Verb) -> None:
    server = serve(engine=engine)

    def cli(*argv: str) -> subprocess.CompletedProcess[str]:
        return verb(*argv, "--url", server.url)

    assert json.loads(cli("ps", "--json").stdout) == {"running": [], "failed": []}
    nothing = cli("ps")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no model is running" in nothing.stderr

    loaded = cli("load", "starter", "--json")
    assert json.loads(loaded.stdout)["state"] == "loaded", loaded.stderr
    assert [entry["id"] for entry in json.loads(cli("ps", "--json").stdout)["running"]] == ["starter"]
    assert cli("ps").stdout.splitlines()[1].split()[:2] == ["starter", "loaded"]
    assert cli("load", "starter").stdout.startswith("starter:")
    listed = json.loads(cli("ls", "--json").stdout)
    (starter,) = listed["models"]
    assert (starter["id"], starter["state"], starter["architecture"]) == ("starter", "loaded", "llama")
    assert starter["size"] > 100_000
    assert listed["server"] == server.url

    said = cli("run", "starter", STARTER_QUESTION, "--temp", "0")
    assert said.returncode == 0, said.stderr
    assert len(said.stdout.split()) >= 3
    document = json.loads(cli("run", "starter", STARTER_QUESTION, "--temp", "0", "--json").stdout)
    assert document["choices"][0]["message"]["content"] == said.stdout.strip()

    assert "model loaded" in cli("logs", "starter").stdout
    assert {line.split(" ")[0] for line in cli("logs").stdout.splitlines()} == {"[starter]"}
    assert all(isinstance(json.loads(line), str) for line in cli("logs", "--json").stdout.splitlines())
    assert json.loads(cli("unload", "starter", "--json").stdout) == {"model": "starter", "state": "unloaded"}
    assert server_models(server) == []
    refused = cli("unload", "starter")
    assert refused.returncode == 2
    assert "not running" in refused.stderr


def server_models(server: Server) -> list[str]:
    entries = http(server, "GET", "/models").json()["data"]
    return [entry["id"] for entry in entries if entry["status"]["value"] != "unloaded"]


def test_logs_are_followed_as_they_come(server: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(COMMAND), "logs", "-f", "starter", "--url", server.url],
        cwd=tmp_path,
        env=fresh_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        marker = f"marker-{time.monotonic_ns()}"
        body = {"model": "starter", "messages": [{"role": "user", "content": marker}]}
        assert http(server, "POST", "/v1/chat/completions", body).status == 200
        until = time.monotonic() + 10
        lines = 0
        while "release" not in follower.stdout.readline():
            lines += 1
            assert time.monotonic() < until
        follower.kill()


def test_a_preload_that_fails_is_told_and_the_rest_is_served(serve: StartServer, built_engine: str, verb: Verb) -> None:
    server = serve("--listen", "127.0.0.1:0", "--preload", "nobody", "--preload", "starter", engine=built_engine)
    wait(lambda: server_models(server) == ["starter"])
    first, *rest = server.told().splitlines()
    assert re.fullmatch(r"llama-appliance \S+ listening on http://127.0.0.1:\d+ and http://127.0.0.1:\d+", first)
    assert "cannot preload: model 'nobody' not found" in "\n".join(rest)
    assert verb("ls", "--url", first.split()[-1]).returncode == 0


@pytest.mark.parametrize("there", [True, False], ids=["no such model", "no server"])
@pytest.mark.parametrize("words", ["run startr hi", "load startr", "unload startr", "logs startr", "logs -f startr"])
def test_what_cannot_be_done_is_told_in_one_line(
    server: Server, nobody_listens: str, verb: Verb, words: str, there: bool
) -> None:
    done = verb(*words.split(), "--url", server.url if there else nobody_listens)
    assert (done.returncode, done.stdout) == (2 if there else 1, "")
    assert done.stderr.startswith("llama-appliance: error: ")
    assert done.stderr.count("\n") == 1
    assert there or "llama-appliance serve" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--listen", "127.0.0.1:0"),
        ("serve", "--listen", "unix:s.sock", "--listen", "0.0.0.0:0", "--api-key", "secret", "--no-starter"),
        ("llama-server", "--port", "0", "--api-prefix", "/llm", "--models-dir", "models"),
    ],
)
def test_the_line_to_try_can_be_pasted_as_it_stands(
    start_server: StartServer, fake_engine: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    write_model(models / "it's $HOME.gguf")
    more = () if "--models-dir" in words else ("--models-dir", str(models), "--no-stores")
    server = start_server(*words, *more, env={ENGINE_VARIABLE: str(fake_engine)}, listening=False)
    line = wait(lambda: re.search(r"^  try.*?: (.+)$", server.told(), re.M), told=server.told).group(1)
    env = fresh_environment(tmp_path) | {KEY_VARIABLE: "secret"}  # a home deep in the file system has no socket
    done = subprocess.run(["sh", "-c", line], cwd="/", env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), line
    assert done.stdout.startswith("Once upon a time")
    assert "secret" not in server.told()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize("path", ["with it", "without it", "with another one"])
def test_a_message_names_the_program_so_that_a_shell_finds_it(nobody_listens: str, tmp_path: Path, path: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / COMMAND.name).write_text("#!/bin/sh\nexit 9\n")
    (other / COMMAND.name).chmod(0o755)
    folders = [str(other)] if path == "with another one" else [str(COMMAND.parent)] if path == "with it" else []
    env = {"PATH": os.pathsep.join([*folders, "/usr/bin", "/bin"])}
    told = run_command("ps", "--url", nobody_listens, cwd=tmp_path, env=env).stderr
    command = re.search("'(.+) serve'", told)
    assert command is not None, told
    assert command[1] == ("llama-appliance" if path == "with it" else str(COMMAND))
    version = ["sh", "-c", f"{command[1]} --version"]
    assert subprocess.run(version, env=fresh_environment(tmp_path) | env, cwd="/", timeout=60).returncode == 0


def test_ls_works_without_a_server_and_shows_what_is_wrong(verb: Verb, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "broken.gguf").write_bytes(b"GGUF and then nothing")
    (folder / "[red]odd.gguf").write_bytes(b"not a model")
    done = verb("ls", "--models-dir", str(folder))
    assert done.returncode == 0
    header, *rows = done.stdout.splitlines()
    assert header.split() == [
        "ID",
        "ARCHITECTURE",
        "PARAMETERS",
        "QUANT",
        "SIZE",
        "CONTEXT",
        "FIT",
        "SOURCE",
        "STATE",
        "LAST",
        "USED",
    ]
    assert [row.split()[0] for row in rows] == ["[red]odd", "broken", "starter"]
    assert "broken cannot be used: " in done.stderr
    assert str(folder) in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    models = json.loads(verb("ls", "--models-dir", str(folder), "--json").stdout)["models"]
    assert [(model["id"], bool(model["error"])) for model in models] == [
        *(("[red]odd", True), ("broken", True), ("starter", False))
    ]


def test_run_without_a_server_loads_the_model_itself(engine: str, tmp_path: Path, free_port: object) -> None:
    done = run_command("run", "starter", STARTER_QUESTION, "--engine", engine, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 3
    assert "no server is running" in done.stderr
    piped = run_command("run", "starter", "--engine", engine, "--json", cwd=tmp_path, stdin=STARTER_QUESTION)
    assert json.loads(piped.stdout)["choices"][0]["message"]["content"] == done.stdout.strip()
    assert run_command("run", "startr", "hi", "--engine", engine, cwd=tmp_path).returncode == 2


def test_selftest_proves_the_engine_or_says_what_is_wrong(engine: str, tmp_path: Path) -> None:
    done = run_command("selftest", "--engine", engine, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), report
    steps = ["load", "health", "chat", "repeat", "stream", "speed", "stop"]
    assert [step["name"] for step in report["steps"]] == steps
    assert report["tokens_per_second"] > 1
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    failed = run_command("selftest", "--engine", engine, "--model", str(broken), cwd=tmp_path)
    assert failed.returncode == 1
    assert "FAILED" in failed.stdout or "not a usable GGUF" in failed.stderr


def test_version(tmp_path: Path, engine: str) -> None:
    facts = json.loads(run_command("version", "--engine", engine, "--json", cwd=tmp_path).stdout)
    assert facts["version"] in run_command("--version", cwd=tmp_path).stdout
    assert facts["engine"]["command"]


def test_help_is_quick(tmp_path: Path) -> None:
    """150 ms are the goal on a quiet machine; of the processor's time the best of several tries may take twice that."""
    best = min(_seconds("--help", tmp_path), *(_seconds("version", tmp_path) for _ in range(4)))
    assert best < 0.3


def _seconds(verb: str, folder: Path) -> float:
    began = os.times()
    assert run_command(verb, cwd=folder).returncode == 0
    now = os.times()
    return now.children_user + now.children_system - began.children_user - began.children_system


def test_a_server_with_a_key_lets_in_who_has_it(
    serve: StartServer, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve("--api-key", "secret").url
    refused = verb("ps", "--url", url)
    assert refused.returncode == 2
    assert "--api-key" in refused.stderr
    assert verb("ps", "--url", url, "--api-key", "wrong").returncode == 2
    assert verb("ps", "--url", url, "--api-key", "secret").returncode == 0
    monkeypatch.setenv("LLAMA_APPLIANCE_API_KEY", "secret")
    assert verb("ps", "--url", url).returncode == 0


def test_a_further_address_is_served_under_the_same_rules(
    serve: StartServer, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """llama.cpp's newer clients look at port 9931 while the server stays at its own."""
    port = free_port()
    argv = ("--no-stores", "--also-listen", f"127.0.0.1:{port}")
    further = f"unix:{tmp_path / 's.sock'}" if os.name == "posix" else f"127.0.0.1:{free_port()}"
    server = serve(*argv, "--also-listen", further, LLAMA_APPLIANCE_API_KEY="secret")
    assert f"and http://127.0.0.1:{port} and " in server.told()
    assert further in server.told()
    server.port = port
    assert http(server, "GET", "/v1/models").status == 401
    key = {"Authorization": "Bearer secret"}
    statuses = [http(server, "GET", "/v1/models", **key, **more).status for more in STRANGE]
    assert statuses == [200, 403, 403]
    second = run_command("serve", *ANY_PORT, *argv, cwd=tmp_path)
    assert second.returncode == 2
    told = f"cannot listen on 127.0.0.1:{port}: another llama-appliance listens there already; "
    advice = "choose another with --also-listen, or leave it out"
    assert second.stderr == f"llama-appliance: error: {told}{advice}\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(COMMAND), "ls"],
        cwd=tmp_path,
        env=fresh_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
