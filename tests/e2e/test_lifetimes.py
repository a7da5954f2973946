"""How the program, its model processes and its clients end: in time, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from program import COMMAND, Server, StartServer, fresh_environment, http, one_engine, wait_gone
from waiting import PATIENCE, SOON, wait

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
INTERRUPT = signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGINT

CHAT = {"model": "starter", "messages": [{"role": "user", "content": "Hello!"}]}
ENDLESS = {
    "model": "starter",
    "prompt": "Once upon a time",
    "stream": True,
    "ignore_eos": True,
    "n_predict": 8000,
}


@pytest.fixture
def loaded(serve: StartServer) -> StartServer:
    """A server whose model is loaded."""

    def start(engine: str, *words: str, **env: str) -> Server:
        server = serve(*words, engine=engine, **env)
        assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
        return server

    return start


def send(server: Server, body: object, conversation: str | None = None) -> socket.socket:
    """A client to whom an answer has begun, and who reads as it pleases."""
    client = post(server, body, conversation)
    assert client.recv(64).startswith(b"HTTP/1.1 200")
    return client


def post(server: Server, body: object, conversation: str | None = None) -> socket.socket:
    """A client that has asked."""
    client = socket.create_connection((server.host, server.port), timeout=10)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sent = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {len(sent)}\r\n"
    if conversation is not None:
        head += f"X-Conversation-Id: {conversation}\r\n"
    client.sendall(head.encode() + b"\r\n" + sent)
    return client


@posix_only
def test_a_killed_program_leaves_no_process(loaded: StartServer, engine: str) -> None:
    server = loaded(engine)
    children = server.children()
    assert children
    with send(server, ENDLESS):
        server.process.kill()
        wait_gone(children)


IDLE = """
from trio._core import _thread_cache

assert _thread_cache.IDLE_TIMEOUT > 1
_thread_cache.IDLE_TIMEOUT = 0.3
"""
"""Runs in the program before its own code: an idle worker thread ends soon, and not after Trio's ten seconds."""


@pytest.mark.slow
def test_an_idle_model_process_lives_on(loaded: StartServer, tmp_path: Path, every_engine: list[str]) -> None:
    """Longer than idle worker threads live, whose end must not be taken for the program's."""
    (tmp_path / "sitecustomize.py").write_text(IDLE)
    servers = [loaded(engine, PYTHONPATH=str(tmp_path)) for engine in every_engine]
    before = [{child.pid for child in server.children()} for server in servers]
    for server in servers:
        wait(lambda server=server: psutil.Process(server.process.pid).num_threads() == 1)
    for server, pids in zip(servers, before, strict=True):
        assert {child.pid for child in server.children()} == pids
        assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
        assert {child.pid for child in server.children()} == pids


def test_an_interrupted_program_ends_at_once_when_nothing_is_under_way(loaded: StartServer, built_engine: str) -> None:
    server = loaded(built_engine)
    children = server.children()
    server.signal(INTERRUPT)
    assert server.wait(SOON) == 0
    assert "Traceback" not in server.told()
    wait_gone(children)


@pytest.mark.slow
@posix_only
def test_a_hang_up_is_a_stop_that_may_come_often(loaded: StartServer, engine: str) -> None:
    """A terminal that closes tells its programs, sometimes twice; the answers under way are finished."""
    server = loaded(engine, "--grace", "20")
    with send(server, {**ENDLESS, "n_predict": 1500}) as client:
        for _ in range(3):
            server.signal(signal.SIGHUP)
            time.sleep(0.05)
        received = bytearray()
        while chunk := client.recv(65536):
            received += chunk
            server.signal(signal.SIGHUP)
    assert b'"stop":true' in received
    assert server.wait(20) == 0


@posix_only
def test_a_hang_up_that_was_ignored_from_the_start_stays_so(tmp_path: Path, fake_engine: Path) -> None:
    """As under nohup."""
    line = f"trap '' HUP; exec '{COMMAND}' serve --listen 127.0.0.1:0 --engine '{fake_engine}' 2>&1"
    env = fresh_environment(tmp_path)
    with subprocess.Popen(["/bin/sh", "-c", line], cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert b"listening" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.slow
@posix_only
@one_engine
def test_a_kept_stream_is_finished_though_its_client_is_away(loaded: StartServer, engine: str, tmp_path: Path) -> None:
    """Its client means to come back, and finds the whole stream at the next start."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"streams": {"path": str(tmp_path / "streams")}}))
    server = loaded(engine, "--config", str(config), "--grace", "20")
    with send(server, {**ENDLESS, "n_predict": 1500}, conversation="kept"):
        pass
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0
    again = http(loaded(engine, "--config", str(config)), "GET", "/v1/stream/kept?from=0")
    assert again.status == 200
    assert b'"stop":true' in again.body


@posix_only
def test_a_second_signal_ends_at_once(loaded: StartServer, built_engine: str) -> None:
    server = loaded(built_engine, "--grace", "60")
    children = server.children()
    with send(server, ENDLESS):
        server.signal(signal.SIGTERM)
        with pytest.raises(AssertionError, match="still there"):
            server.wait(0.5)
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 1
    wait_gone(children)


STUCK = """
import pathlib, time, trio

set_event = trio.Event.set

def stuck(event):
    while pathlib.Path("stuck").exists():
        time.sleep(0.1)
    set_event(event)

trio.Event.set = stuck
"""
"""Runs in the program before its own code: from the moment a file appears, its event loop hangs."""


@posix_only
def test_the_watchdog_ends_a_program_that_hangs(loaded: StartServer, tmp_path: Path, built_engine: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    server = loaded(built_engine, "--grace", "0", PYTHONPATH=str(tmp_path))
    children = server.children()
    (tmp_path / "stuck").touch()
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 1
    assert time.monotonic() - began > 4
    assert "in stuck" in server.told()  # it shows where
    wait_gone(children)


def model_begun(pid: int) -> bool:
    """A model process runs below this program."""
    found = False
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found = found or "--model" in child.cmdline()
    return found


@posix_only
def test_the_watchdog_needs_no_reader_of_standard_error(tmp_path: Path, fake_engine: Path) -> None:
    """The program hangs because it tells of a failed preload and nobody reads; so would the watchdog's last words."""
    argv = [str(COMMAND), "serve", "--listen", "127.0.0.1:0", "--engine", str(fake_engine), "--grace", "0"]
    argv += ["--preload", "starter"]
    env = {**fresh_environment(tmp_path), "FAKE_LOAD_DELAY": "1.5", "FAKE_FAIL_TO_LOAD": "1"}
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        assert b"listening" in os.read(reader, 4096)
        wait(lambda: model_begun(process.pid))
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" " * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" ")
        os.set_blocking(writer, True)
        wait(lambda: not model_begun(process.pid))
        time.sleep(1)  # it tells of that end, which cannot be seen
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGALRM
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)


def model_process(server: Server) -> psutil.Process:
    """The process below the program that serves the model."""
    found = [child for child in server.children() if "--model" in child.cmdline() or "-m" in child.cmdline()]
    return found[-1]


@posix_only
def test_no_model_process_has_a_key_on_its_command_line_or_listens_for_others(server: Server) -> None:
    assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
    child = model_process(server)
    assert "--api-key" not in child.cmdline()
    listening = [c.laddr for c in child.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {address.ip for address in listening} == {"127.0.0.1"}
    with socket.create_connection(("127.0.0.1", listening[0].port), timeout=5) as stranger:
        stranger.sendall(b"GET /props HTTP/1.0\r\n\r\n")
        assert b" 401 " in stranger.recv(256).split(b"\r\n")[0]


@posix_only
def test_standard_streams_that_are_closed_do_no_harm(
    built_engine: str, free_port: Callable[[], int], tmp_path: Path
) -> None:
    port = free_port()
    line = f'exec "{COMMAND}" serve --listen 127.0.0.1:{port} --engine "{built_engine}" --threads 1 <&- >&- 2>&-'

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with Server(("-c", line), tmp_path, program=Path("/bin/sh")) as server:
        server.wait_for(listens)
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0


@posix_only
def test_who_has_connected_before_the_end_is_answered(serve: StartServer) -> None:
    """The system has made these connections; closing the listening socket would reset them without a word."""
    server = serve()
    server.signal(signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=5)) for _ in range(250)
        ]
        for client in clients:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGCONT)
        answers = [client.recv(4096) for client in clients]
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    assert server.wait(20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_at_rest_has_loaded_nothing_that_nobody_asked_for(serve: StartServer) -> None:
    """SQLite alone takes 1.8 MB of it: rows and entries in memory wait for a question."""
    server = serve()
    maps = Path(f"/proc/{server.process.pid}/maps")
    for path in ("/health", "/v1/models", "/running"):
        assert http(server, "GET", path).status == 200
    assert "sqlite" not in maps.read_text("utf-8")
    assert http(server, "GET", "/api/history").status == 200
    assert "sqlite" in maps.read_text("utf-8")


def test_clients_that_leave_free_the_model(server: Server) -> None:
    """The engine has four slots; eight endless answers that nobody wants any more must not keep a ninth waiting."""
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(post(server, ENDLESS))
        wait(lambda: len(http(server, "GET", "/api/inflight").json()["requests"]) == 8)
    assert http(server, "POST", "/v1/chat/completions", CHAT, timeout=PATIENCE).status == 200
