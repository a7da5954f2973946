"""``rpc-worker``: what it refuses, and the real worker behind it."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import trio
from command_line import Command
from engine_folders import make_build
from program import Server, run_command
from rpc_builds import build_with_rpc

from appliance.core.engine import Engine
from appliance.core.rpc_workers import RpcWorker
from appliance.features.engines.rpc_look import look_at_worker
from appliance.features.engines.rpc_server import PROGRAM, WorkerRun, worker_argv

TIME = 30.0
LISTENING = re.compile(r"llama-appliance rpc-worker listening on (127\.0\.0\.1:\d+): RPC (\S+), CPU: .+ MiB free\)")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_with_rpc()


@pytest.fixture
def lent(tmp_path: Path) -> Path:
    """An engine that has a worker's program, which nobody starts."""
    folder = make_build(tmp_path / "engines")
    (folder / PROGRAM).write_text("#!/bin/sh\nexit 1\n")
    return folder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--listen 0.0.0.0:0", "neither keys nor encryption; use an SSH tunnel"),
        ("--listen 192.0.2.1:50052 --allow-unauthenticated", "it is no address of this machine"),
        ("--listen [::1]:50052", "only IPv4"),
        ("--listen box.local:50052 --allow-unauthenticated", "box.local is not an IPv4 address"),
        ("--listen 127.0.0.1:70000", "no port from 1 to 65535"),
        ("--threads 0", "--threads"),
    ],
)
def test_what_is_refused(command: Command, lent: Path, words: str, told: str) -> None:
    assert told in command.bad("rpc-worker", "--engine", lent, *words.split())


def test_an_engine_without_a_worker_says_how_to_get_one(command: Command, tmp_path: Path) -> None:
    told = command.bad("rpc-worker", "--engine", make_build(tmp_path / "engines"))
    assert f"has no {PROGRAM}; 'llama-appliance engines install cpu'" in told


def test_a_port_that_is_taken(command: Command, lent: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        where = f"127.0.0.1:{other.getsockname()[1]}"
        told = command.bad("rpc-worker", "--engine", lent, "--listen", where)
    assert f"cannot listen on {where}: another program has it" in told


def test_how_the_options_are_handed_on() -> None:
    program = "/e/ggml-rpc-server"
    assert worker_argv(program, "0.0.0.0", 5, 3)[-7:] == (program, "-H", "0.0.0.0", "-p", "5", "-t", "3")
    every = worker_argv("p", "10.0.0.2", 5, 3, devices=("CUDA0", "CPU"), cache=True)
    assert every[-10:] == ("p", "-H", "10.0.0.2", "-p", "5", "-t", "3", "-d", "CUDA0,CPU", "-c")
    assert WorkerRun("0.0.0.0", 5).endpoint == "127.0.0.1:5"
    assert WorkerRun("10.0.0.2", 5).endpoint == "10.0.0.2:5"


StartWorker = Callable[..., Server]


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Generator[StartWorker]:
    """Start the command with the real build; everything is ended after the test."""
    with ExitStack() as begun:

        def start_worker() -> Server:
            argv = ("rpc-worker", "--listen", "127.0.0.1:0", "--threads", "1", "--engine", str(engine.folder))
            output = begun.enter_context((tmp_path / "output").open("wb"))
            env = {"LLAMA_CACHE": str(tmp_path / "cache")}
            return begun.enter_context(Server(argv, tmp_path, env, output=output.fileno()))

        yield start_worker


def process_of(running: Server) -> psutil.Process:
    """The ``ggml-rpc-server``."""
    return next(child for child in running.children() if PROGRAM in child.name())


def endpoint_of(running: Server, engine: Engine, starts: int = 1) -> str:
    """Where it listens, once its output has told so for each of its starts."""
    output = running.cwd / "output"
    told = running.wait_for(lambda: LISTENING.findall(output.read_text())[starts - 1 :])
    assert [version for _, version in told] == [engine.rpc]
    return told[0][0]


def look(endpoint: str) -> RpcWorker:
    return trio.run(look_at_worker, endpoint)


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_tells_where_it_listens_and_ends_when_asked(
    start: StartWorker, engine: Engine, number: signal.Signals
) -> None:
    running = start()
    endpoint = endpoint_of(running, engine)
    assert look(endpoint).state == "ready"
    server = process_of(running)
    began = time.monotonic()
    running.signal(number)
    assert running.wait(TIME) == 0
    assert time.monotonic() - began < 5
    assert not server.is_running()
    assert look(endpoint).state == "unreachable"


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be killed by a signal there")
def test_a_worker_that_died_is_started_again_on_its_port(start: StartWorker, engine: Engine) -> None:
    running = start()
    endpoint = endpoint_of(running, engine)
    for starts in (2, 3):
        dead = process_of(running)
        os.kill(dead.pid, signal.SIGKILL)
        assert endpoint_of(running, engine, starts) == endpoint
        assert process_of(running).pid != dead.pid
    assert look(endpoint).state == "ready"


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGPIPE")
def test_a_client_that_gave_up_waiting_does_not_take_it_along(start: StartWorker, engine: Engine) -> None:
    running = start()
    endpoint = endpoint_of(running, engine)
    host, _, port = endpoint.partition(":")
    pid = process_of(running).pid
    with socket.create_connection((host, int(port))) as first:
        first.sendall(b"\x0e")
        time.sleep(0.1)
        with socket.create_connection((host, int(port))) as impatient:
            impatient.sendall(b"\x0e" + (24).to_bytes(8, "little") + bytes(24))
    assert look(endpoint).state == "ready"
    assert process_of(running).pid == pid


@pytest.mark.needs("ggml-rpc-server")
def test_a_device_that_is_not_there(engine: Engine, tmp_path: Path) -> None:
    argv = ("rpc-worker", "--engine", str(engine.folder), "--listen", "127.0.0.1:0", "--device", "CUDA7")
    done = run_command(*argv, cwd=tmp_path, timeout=TIME)
    assert done.returncode == 2
    assert "there is no device 'CUDA7'; this engine has: CPU: " in done.stderr
    assert done.stdout == ""
