"""The installed command as a process: its start, its addresses, its words for a shell, its end in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from program import ANY_PORT, COMMAND, StartServer, fresh_environment, http, run_command
from slow import one_of
from waiting import wait

from appliance.core.settings import KEY_VARIABLE
from appliance.engines.named import ENGINE_VARIABLE

STRANGE = ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"})


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize(
    "words",
    one_of(
        [
            ("serve", "--listen", "127.0.0.1:0"),
            ("serve", "--listen", "unix:s.sock", "--listen", "0.0.0.0:0", "--api-key", "secret", "--no-starter"),
            ("llama-server", "--port", "0", "--api-prefix", "/llm", "--models-dir", "models"),
        ]
    ),
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
def test_a_message_names_the_program_so_that_a_shell_finds_it(tmp_path: Path, path: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / COMMAND.name).write_text("#!/bin/sh\nexit 9\n")
    (other / COMMAND.name).chmod(0o755)
    folders = [str(other)] if path == "with another one" else [str(COMMAND.parent)] if path == "with it" else []
    env = {"PATH": os.pathsep.join([*folders, "/usr/bin", "/bin"])}
    told = run_command("ps", "--url", "http://127.0.0.1:9", cwd=tmp_path, env=env).stderr
    command = re.search("'(.+) serve'", told)
    assert command is not None, told
    assert command[1] == ("llama-appliance" if path == "with it" else str(COMMAND))
    version = ["sh", "-c", f"{command[1]} --version"]
    assert subprocess.run(version, env=fresh_environment(tmp_path) | env, cwd="/", timeout=60).returncode == 0


def test_help_is_quick(tmp_path: Path) -> None:
    """150 ms are the goal on a quiet machine; of the processor's time the best of several tries may take twice that."""
    best = min(_seconds("--help", tmp_path), *(_seconds("version", tmp_path) for _ in range(4)))
    assert best < 0.3


def _seconds(verb: str, folder: Path) -> float:
    began = os.times()
    assert run_command(verb, cwd=folder).returncode == 0
    now = os.times()
    return now.children_user + now.children_system - began.children_user - began.children_system


def test_a_further_address_is_served_under_the_same_rules_although_a_preload_fails(
    serve: StartServer, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """llama.cpp's newer clients look at port 9931 while the server stays at its own."""
    port = free_port()
    argv = ("--no-stores", "--also-listen", f"127.0.0.1:{port}")
    further = f"unix:{tmp_path / 's.sock'}" if os.name == "posix" else f"127.0.0.1:{free_port()}"
    preload = ("--preload", "nobody", "--preload", "starter")
    server = serve(*argv, "--also-listen", further, *preload, LLAMA_APPLIANCE_API_KEY="secret")
    key = {"Authorization": "Bearer secret"}
    first, *_ = server.told().splitlines()
    assert re.fullmatch(rf"llama-appliance \S+ listening on {server.url} and http://127.0.0.1:{port} and .*", first)
    assert further in first
    server.port = port
    assert http(server, "GET", "/v1/models").status == 401
    statuses = [http(server, "GET", "/v1/models", **key, **more).status for more in STRANGE]
    assert statuses == [200, 403, 403]
    server.wait_for(lambda: http(server, "GET", "/models", **key).json()["data"][0]["status"]["value"] == "loaded")
    assert "cannot preload: model 'nobody' not found" in server.told()
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
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
