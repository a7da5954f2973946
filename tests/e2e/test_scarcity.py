"""What the program does when the machine, or a limit, has no file, process or thread left for it: it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import h11
import psutil
import pytest
import trio
from gguf_files import write_model
from http_harness import Answer, Client
from program import Server, StartServer, http, wait_gone
from slow import one_of
from test_lifetimes import CHAT, ENDLESS, send
from waiting import wait

from appliance.http.bytes.connection import LAST_HEAD
from appliance.platform.posix import WARDEN_TIME

if sys.platform != "linux":
    pytest.skip("limits and control groups as Linux has them", allow_module_level=True)

import resource  # there is none on Windows

PIDS = Path("/sys/fs/cgroup/pids")
EVENTS = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
NO_MORE_FILES = 3
"""Fewer than any program has open: nothing can be opened any more, and what is open stays."""
SCARCE = 9.0
"""Seconds in which every task in the background is due: measuring after 1 s, trials after 3 s, samples after 5 s."""


def limit_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture
def start(serve: StartServer) -> StartServer:
    """A server whose model is loaded."""

    def begin(engine: str, *words: str, limited: Callable[[], object] | None = None) -> Server:
        server = serve("--preload", "starter", *words, engine=engine, limited=limited)
        server.wait_for(lambda: b'"loaded"' in http(server, "GET", "/v1/models").body)
        return server

    return begin


def clients(server: Server, count: int, request: bytes = b"") -> contextlib.ExitStack:
    """So many connections as can be had, each with this request sent."""
    held = contextlib.ExitStack()
    for _ in range(count):
        with contextlib.suppress(OSError):
            client = held.enter_context(socket.create_connection((server.host, server.port), timeout=2))
            client.sendall(request)
    return held


def lives(server: Server, seconds: float) -> None:
    with contextlib.suppress(AssertionError):
        server.wait(seconds)
    assert server.process.poll() is None, server.told()


def serves(server: Server) -> None:
    wait(lambda: status(server), lambda found: found == 200, within=30, told=server.told)
    assert "bug" not in server.told()
    assert "Traceback" not in server.told()


def status(server: Server) -> int:
    try:
        return http(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 4}, timeout=10).status
    except OSError:
        return 0


def wardens(server: Server) -> list[int]:
    return [child.pid for child in server.children() if "llama-appliance-warden" in child.cmdline()]


def descriptors(server: Server) -> list[int]:
    return [int(each.name) for each in Path(f"/proc/{server.process.pid}/fd").iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("most", [64, 128, 256])
@pytest.mark.parametrize("request_", [b"", EVENTS], ids=["idle", "events"])
def test_clients_cannot_take_every_file(start: StartServer, built_engine: str, most: int, request_: bytes) -> None:
    server = start(built_engine, limited=partial(limit_files, most))
    with clients(server, most + 10, request_):
        lives(server, SCARCE)
        assert len(descriptors(server)) < most
        # The newcomer finds a place, and the model a connection; nobody makes way who reads a feed.
        wanted = 503 if request_ else 200
        wait(lambda: status(server), lambda found: found == wanted, told=server.told)
    serves(server)


@contextlib.contextmanager
def without_files(server: Server) -> Iterator[None]:
    process = psutil.Process(server.process.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (NO_MORE_FILES, before[1]))
    yield
    with contextlib.suppress(psutil.NoSuchProcess):
        process.rlimit(psutil.RLIMIT_NOFILE, before)


class Pids:
    """A control group of the program's processes and threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def join(self) -> None:
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def freeze(self, most: str = "") -> None:
        """Allow as many as there are, and not one more; or ``most``, which may be fewer than there are."""
        (self._folder / "pids.max").write_text(most or (self._folder / "pids.current").read_text())

    def release(self) -> None:
        (self._folder / "pids.max").write_text("max")


@pytest.fixture
def pids() -> Generator[Pids]:
    folder = PIDS / f"llama-appliance-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as cause:
        pytest.skip(f"no control group for the number of processes can be made: {cause}")
    yield Pids(folder)
    wait(lambda: (folder / "cgroup.procs").read_text(), lambda left: not left)
    folder.rmdir()


def test_without_a_file_to_be_had_everything_waits(start: StartServer, built_engine: str) -> None:
    server = start(built_engine)
    [first] = wardens(server)
    with without_files(server):
        os.kill(first, signal.SIGKILL)
        lives(server, SCARCE)
    serves(server)
    waiting = [line for line in server.told().splitlines() if "has to wait" in line]
    assert waiting
    assert len(waiting) == len(set(waiting)), waiting
    wait(lambda: wardens(server), lambda found: found and first not in found)
    children = server.children()
    server.process.kill()
    wait_gone(children)


@pytest.mark.slow
def test_the_warden_comes_back_though_all_files_are_taken(start: StartServer, built_engine: str) -> None:
    """It has descriptors of its own for that: who kills the warden first and the program then leaves no engine."""
    server = start(built_engine)
    [first] = wardens(server)
    used = max(descriptors(server)) + 1
    psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE, (used, used))
    with clients(server, used - len(descriptors(server))):
        os.kill(first, signal.SIGKILL)
        wait(lambda: any(pid != first for pid in wardens(server)))
        children = server.children()
        server.process.kill()
        wait_gone(children)


@pytest.mark.slow
def test_without_a_warden_no_model_is_loaded(
    pids: Pids, start_server: StartServer, fake_llama_server: tuple[str, ...], fake_model: Path, tmp_path: Path
) -> None:
    """One that were loaded now would outlive the program, should that be killed."""
    cmd = shlex.join([*fake_llama_server, "--model", str(fake_model)]) + " --port ${PORT}"
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"models": {name: {"cmd": cmd} for name in ("one", "two")}}), "utf-8")
    server = start_server("serve", "--listen", "127.0.0.1:0", "--config", str(config), limited=pids.join)
    ask = partial(http, server, "POST", "/v1/chat/completions")
    assert ask({**CHAT, "model": "one"}).status == 200
    pids.freeze("1")
    os.kill(wardens(server)[0], signal.SIGKILL)
    wait(lambda: "no model or command is started" in server.told(), told=server.told)
    began = time.monotonic()
    for _ in range(3):
        refused = ask({**CHAT, "model": "two"})
        assert refused.status == 503, refused.body
        assert int(refused.headers["Retry-After"]) >= 1
        assert "no model or command is started" in refused.json()["error"]["message"]
    assert time.monotonic() - began < 2 * WARDEN_TIME  # only the first one may have waited for a warden
    assert server.told().count("[WARN] no model or command is started") == 1
    assert "failed to start" not in server.told()
    pids.release()
    wait(lambda: wardens(server))
    assert ask({**CHAT, "model": "two"}).status == 200
    wait(lambda: "models and commands are started again" in server.told(), told=server.told)
    children = server.children()
    server.process.kill()
    wait_gone(children)


def finish(server: Server, client: socket.socket) -> bytes:
    server.signal(signal.SIGTERM)
    received = bytearray()
    while chunk := client.recv(65536):
        received += chunk
    return bytes(received)


@pytest.mark.slow
@pytest.mark.needs("root")
def test_sigterm_without_a_thread_to_be_had_keeps_the_grace(pids: Pids, start: StartServer, built_engine: str) -> None:
    server = start(built_engine, "--grace", "20", limited=pids.join)
    with send(server, {**ENDLESS, "n_predict": 1500}) as client:
        pids.freeze()
        assert b'"stop":true' in finish(server, client)
    assert server.wait(20) == 0, server.told()


@pytest.fixture
def many_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("clients", one_of([100, 400]))
def test_a_burst_beyond_the_places_is_answered_in_words(serve: StartServer, tmp_path: Path, clients: int) -> None:
    """Each connects, waits a moment and sends a request in two parts, as many do.

    One that a busy machine keeps from sending for longer than the server waits may find the connection closed.
    """
    model = write_model(tmp_path / "alpha.gguf")
    words = ("--no-starter", "--model", f"alpha={model}", "--preload", "alpha")
    server = serve(*words, limited=partial(limit_files, clients * 16 // 25))
    server.wait_for(lambda: "is ready" in server.told())
    found: Counter[str] = Counter()
    content = json.dumps({**CHAT, "model": "alpha", "max_tokens": 2}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()

    async def ask() -> None:
        began = trio.current_time()
        try:
            async with await trio.open_tcp_stream(server.host, server.port) as stream:
                await trio.sleep(0.05)
                await stream.send_all(head)
                await trio.lowlevel.checkpoint()
                await stream.send_all(content)
                found[in_short(await Client(stream).answer())] += 1
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            found["late" if trio.current_time() - began > LAST_HEAD else f"cut: {error}"] += 1

    async def burst() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(ask)

    for _ in range(3):
        trio.run(burst)
    assert found.total() == 3 * clients
    assert set(found) <= {"200", "503 busy, again in 1", "late"}, found
    assert found["200"] >= 3, found
    wait(lambda: http(server, "GET", "/health").status, lambda status: status == 200)


def in_short(answer: Answer) -> str:
    if answer.cut or (answer.status == 200 and not answer.json["choices"]):
        return f"cut after {len(answer.body)} bytes"
    again = answer.header("retry-after")
    return "200" if answer.status == 200 else f"{answer.status} {answer.error['reason']}, again in {again}"
