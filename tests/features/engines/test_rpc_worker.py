"""``rpc-worker``: what it refuses, and the real worker behind it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from queue import Empty, Queue

import psutil
import pytest
import trio
from command_line import Command
from engine_folders import make_build
from rpc_builds import build_with_rpc

from appliance.core.engine import Engine
from appliance.core.rpc_workers import RpcWorker
from appliance.features.engines.rpc_look import look_at_worker
from appliance.features.engines.rpc_server import PROGRAM, WorkerRun, worker_argv

COMMAND = Path(sysconfig.get_path("scripts")) / ("llama-appliance.exe" if os.name == "nt" else "llama-appliance")
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


class Running:
    """The command, and what it prints, line by line as it comes."""

    def __init__(self, cache: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [str(COMMAND), "rpc-worker", *words],
            env={**os.environ, "LLAMA_CACHE": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        try:
            return self._lines.get(timeout=TIME)
        except Empty:
            raise AssertionError(f"it says nothing; status {self.process.poll()}") from None

    def server(self) -> psutil.Process:
        """The ``ggml-rpc-server``."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if PROGRAM in child.name():
                return child
        raise AssertionError("there is no worker process")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIME)
        self._reader.join(TIME)
        self.process.stdout.close()


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Generator[Callable[..., Running]]:
    """Start the command with the real build; everything is ended after the test."""
    begun: list[Running] = []

    def begin(*words: str) -> Running:
        named = () if "--engine" in words else ("--engine", engine.folder or engine.command[0])
        begun.append(Running(tmp_path / "cache", "--listen", "127.0.0.1:0", "--threads", "1", *named, *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def endpoint_of(line: str, engine: Engine) -> str:
    found = LISTENING.fullmatch(line)
    assert found is not None, line
    assert found[2] == engine.rpc
    return found[1]


def look(endpoint: str) -> RpcWorker:
    return trio.run(look_at_worker, endpoint)


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_tells_where_it_listens_and_ends_when_asked(
    start: Callable[..., Running], engine: Engine, number: signal.Signals
) -> None:
    running = start()
    endpoint = endpoint_of(running.line(), engine)
    assert look(endpoint).state == "ready"
    server = running.server()
    began = time.monotonic()
    running.process.send_signal(number)
    assert running.process.wait(TIME) == 0
    assert time.monotonic() - began < 5
    assert not server.is_running()
    assert look(endpoint).state == "unreachable"


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be killed by a signal there")
def test_a_worker_that_died_is_started_again_on_its_port(start: Callable[..., Running], engine: Engine) -> None:
    running = start()
    endpoint = endpoint_of(running.line(), engine)
    for _ in range(2):
        dead = running.server()
        os.kill(dead.pid, signal.SIGKILL)
        assert endpoint_of(running.line(), engine) == endpoint
        assert running.server().pid != dead.pid
    assert look(endpoint).state == "ready"


@pytest.mark.needs("ggml-rpc-server")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGPIPE")
def test_a_client_that_gave_up_waiting_does_not_take_it_along(start: Callable[..., Running], engine: Engine) -> None:
    running = start()
    endpoint = endpoint_of(running.line(), engine)
    host, _, port = endpoint.partition(":")
    pid = running.server().pid
    with socket.create_connection((host, int(port))) as first:
        first.sendall(b"\x0e")
        time.sleep(0.1)
        with socket.create_connection((host, int(port))) as impatient:
            impatient.sendall(b"\x0e" + (24).to_bytes(8, "little") + bytes(24))
    assert look(endpoint).state == "ready"
    assert running.server().pid == pid


@pytest.mark.needs("ggml-rpc-server")
def test_a_device_that_is_not_there(engine: Engine) -> None:
    done = subprocess.run(
        [str(COMMAND), "rpc-worker", "--engine", str(engine.folder), "--listen", "127.0.0.1:0", "--device", "CUDA7"],
        capture_output=True,
        text=True,
        timeout=TIME,
    )
    assert done.returncode == 2
    assert "there is no device 'CUDA7'; this engine has: CPU: " in done.stderr
    assert done.stdout == ""
