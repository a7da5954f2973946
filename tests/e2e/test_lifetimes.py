"""How the program, its model processes and its clients end: in time, and leaving nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import StartServer
from program import Server, http, run_command, wait_gone

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


def serve(start_server: StartServer, engine: str, *more: str) -> Server:
    server = start_server("serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", *more)
    assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
    return server


def send(server: Server, body: object) -> socket.socket:
    """A client that has asked and reads as it pleases."""
    client = socket.create_connection((server.host, server.port), timeout=10)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sent = json.dumps(body).encode()
    client.sendall(
        b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (server.port, len(sent), sent)
    )
    assert client.recv(64).startswith(b"HTTP/1.1 200")
    return client


@posix_only
def test_a_killed_program_leaves_no_process(start_server: StartServer, engine: str) -> None:
    server = serve(start_server, engine)
    children = server.children()
    assert children
    with send(server, ENDLESS):
        server.process.kill()
        wait_gone(children, 2)


def test_an_idle_model_process_lives_on(start_server: StartServer, engine: str) -> None:
    """Longer than idle worker threads live, whose end must not be taken for the program's."""
    server = serve(start_server, engine)
    before = {child.pid for child in server.children()}
    time.sleep(16)
    assert {child.pid for child in server.children()} == before
    assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
    assert {child.pid for child in server.children()} == before


def test_an_interrupted_program_ends_at_once_when_nothing_is_under_way(
    start_server: StartServer, built_engine: str
) -> None:
    server = serve(start_server, built_engine)
    children = server.children()
    server.signal(INTERRUPT)
    assert server.wait(3) == 0
    assert "Traceback" not in server.told()
    wait_gone(children, 0.5)


def test_a_client_that_does_not_read_holds_nothing_up(start_server: StartServer, engine: str) -> None:
    grace = 1.0
    server = serve(start_server, engine, "--grace", str(grace))
    children = server.children()
    with send(server, ENDLESS):
        time.sleep(0.5)  # so that the buffers between the two fill up
        began = time.monotonic()
        server.signal(INTERRUPT)
        server.wait(grace + 5)
        assert time.monotonic() - began >= 0.5
    assert "Traceback" not in server.told()
    wait_gone(children, 1)


def test_requests_under_way_are_finished(start_server: StartServer, built_engine: str) -> None:
    server = serve(start_server, built_engine, "--grace", "20")
    story = {**ENDLESS, "n_predict": 1500}
    with send(server, story) as client:
        server.signal(INTERRUPT)
        received = bytearray()
        while chunk := client.recv(65536):
            received += chunk
    assert b'"stop":true' in received
    assert server.wait(6) == 0


@posix_only
def test_a_second_signal_ends_at_once(start_server: StartServer, built_engine: str) -> None:
    server = serve(start_server, built_engine, "--grace", "60")
    children = server.children()
    with send(server, ENDLESS):
        server.signal(signal.SIGTERM)
        with pytest.raises(AssertionError, match="still there"):
            server.wait(0.5)
        server.signal(signal.SIGTERM)
        assert server.wait(3) == 1
    wait_gone(children, 1)


@posix_only
def test_the_watchdog_ends_a_program_that_hangs(start_server: StartServer, tmp_path: Path, built_engine: str) -> None:
    """A module that blocks the event loop for ever once the program is told to stop, loaded from outside."""
    (tmp_path / "sitecustomize.py").write_text(
        "import trio, time\n"
        "class Stuck(trio.Event):\n"
        "    def set(self):\n"
        "        while True:\n"
        "            time.sleep(1)\n"
        "import appliance.main\n"
        "appliance.main.trio.Event = Stuck\n"
    )
    server = start_server(
        *("serve", "--listen", "127.0.0.1:0", "--engine", built_engine, "--grace", "0"),
        env={"PYTHONPATH": str(tmp_path)},
        listening=False,
    )
    until = time.monotonic() + 20
    while "listening" not in server.told() and time.monotonic() < until:
        time.sleep(0.05)
    children = server.children()
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(8) == 1
    assert time.monotonic() - began > 4
    assert "Timeout" in server.told()
    wait_gone(children, 1)


def test_a_second_copy_on_the_same_port_says_so(server: Server, tmp_path: Path, engine: str) -> None:
    done = run_command("serve", "--listen", f"127.0.0.1:{server.port}", "--engine", engine, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{server.port}" in done.stderr
    assert "another llama-appliance listens there" in done.stderr
    assert http(server, "GET", "/health").status == 200


def test_the_port_is_free_again_at_once(start_server: StartServer, built_engine: str) -> None:
    first = serve(start_server, built_engine)
    first.signal(INTERRUPT)
    assert first.wait(5) == 0
    second = start_server("serve", "--listen", f"127.0.0.1:{first.port}", "--engine", built_engine)
    assert second.port == first.port
    assert http(second, "POST", "/v1/chat/completions", CHAT).status == 200


def test_a_model_process_that_dies_is_replaced(start_server: StartServer, built_engine: str) -> None:
    server = serve(start_server, built_engine)
    child = model_process(server)
    child.kill()
    wait_gone([child], 2)
    until = time.monotonic() + 5
    while (answer := http(server, "POST", "/v1/chat/completions", CHAT)).status != 200:
        assert time.monotonic() < until, answer.body
    assert model_process(server).pid != child.pid


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
def test_standard_streams_that_nobody_reads_or_that_are_closed_do_no_harm(
    start_server: StartServer, built_engine: str, tmp_path: Path
) -> None:
    import subprocess

    from program import COMMAND, fresh_environment

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = f'exec "{COMMAND}" serve --listen 127.0.0.1:{port} --engine "{built_engine}" --threads 1 <&- >&- 2>&-'
    process = subprocess.Popen(["/bin/sh", "-c", line], cwd=tmp_path, env=fresh_environment(tmp_path))
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(8) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
