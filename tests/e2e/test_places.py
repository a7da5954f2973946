"""Connections that strangers hold, and bursts of honest clients: with few files, and therefore few places."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import trio
from gguf_files import write_model
from program import Server, StartServer, http
from waiting import wait

if sys.platform != "linux":
    pytest.skip("limits of open files, and addresses of the loopback, as Linux has them", allow_module_level=True)

import resource  # there is none on Windows

import trio.lowlevel

KEY = "the-key"
FILES, PLACES = 256, 52
"""A limit of open files, and the connections that it leaves room for (docs/reliability.md)."""
CHAT = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
HOST = "Host: localhost\r\n"
TURN = 0.25
"""Seconds between two signs of life of a stranger."""
OLD = 3.0
"""Seconds after which nobody keeps a place without a key."""
GOOD = 48
"""Good clients at once."""
WITHIN = 1.0
"""Seconds for a good client's answer."""


class Stranger(NamedTuple):
    """A way to hold a connection without a key."""

    opening: str = ""
    trickle: str = ""
    """Sent every `TURN`."""
    sip: int = 0
    """Bytes read every `TURN`."""


def strangers(server: Server) -> list[Stranger]:
    page = http(server, "GET", "/", Accept="text/html").body.decode()
    [asset] = re.findall(r"\./(ui/assets/[^\"']+\.js)", page)[:1]
    head = f"HTTP/1.1\r\n{HOST}"
    drips = f"{head}Content-Length: 1000000\r\n\r\n"
    return [
        Stranger(),
        Stranger("GET /health HTTP/1.1\r\nX: ", trickle="x"),
        Stranger(f"GET /{asset} {head}\r\n" * 100),
        Stranger(f"GET /health {head}\r\n" * 20_000),
        Stranger(f"GET /v1/models {head}\r\n" * 10_000),
        Stranger(f"POST /v1/chat/completions {drips}", trickle="x" * 1000),
        Stranger(f"POST /health {drips}" + "x" * 100_000, trickle="x" * 1000),
        Stranger(f"GET /{asset} {head}\r\n" * 100, sip=4000),
        Stranger(trickle=f"GET /health {head}\r\n", sip=4000),
    ]


class Siege:
    """Holds connections of strangers in a thread of its own."""

    def __init__(self, server: Server, kinds: list[Stranger], count: int) -> None:
        self._server = server
        self._kinds = itertools.cycle(kinds)
        self._held: dict[socket.socket, tuple[Stranger, bytes]] = {}
        self._over = threading.Event()
        for _ in range(count):
            self._connect()
        self._thread = threading.Thread(target=self._hold)

    def __enter__(self) -> Siege:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for sock in self._held:
            sock.close()

    def _connect(self) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1)
        try:
            sock.connect((self._server.host, self._server.port))
        except OSError:
            sock.close()
            return
        sock.setblocking(False)
        kind = next(self._kinds)
        self._held[sock] = kind, kind.opening.encode()

    def _hold(self) -> None:
        while not self._over.wait(TURN / max(len(self._held), 1)):
            sock = next(iter(self._held), None)
            if sock is None:
                continue
            kind, unsent = self._held.pop(sock)
            try:
                unsent = self._act(sock, kind, unsent)
            except OSError:
                sock.close()
            else:
                self._held[sock] = kind, unsent  # behind the others

    def _act(self, sock: socket.socket, kind: Stranger, unsent: bytes) -> bytes:
        """Raises OSError when the server has closed it. A stranger that does not read learns that by sending."""
        unsent = unsent or kind.trickle.encode()
        with contextlib.suppress(BlockingIOError):
            if kind.sip and not sock.recv(kind.sip):
                raise ConnectionResetError
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[sock.send(unsent) :] if unsent else b""
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
            raise ConnectionResetError  # not ESTABLISHED any more
        return unsent


def limit_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture(autouse=True)
def _files_of_the_clients() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start(serve: StartServer, tmp_path: Path, files: int, *options: str) -> Server:
    words = ("--no-starter", "--model", f"alpha={write_model(tmp_path / 'alpha.gguf')}", "--preload", "alpha")
    server = serve(*words, *options, limited=partial(limit_files, files))
    server.wait_for(lambda: "is ready" in server.told())
    return server


def looks(server: Server, count: int) -> list[tuple[object, float]]:
    """What good clients get, each twice on a connection that it keeps, and after how many seconds."""
    found: list[tuple[object, float]] = []
    with contextlib.ExitStack() as stack:
        kept = [HTTPConnection(server.host, server.port, timeout=5) for _ in range(count)]
        for connection in kept:
            stack.callback(connection.close)
            connection.auto_open = False
        for connection in (*kept, *kept):
            began = time.monotonic()
            found.append((_ask(connection, first=len(found) < count), time.monotonic() - began))
    return found


def _ask(connection: HTTPConnection, *, first: bool) -> object:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        if first:
            connection.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException) as error:
        return error
    return answer.status


def test_no_stranger_keeps_a_place_from_a_good_client(serve: StartServer, tmp_path: Path) -> None:
    """All kinds at once: each holds more places than the good clients can do without."""
    server = start(serve, tmp_path, FILES, "--api-key", KEY)
    kinds = strangers(server)
    assert PLACES // len(kinds) > PLACES - GOOD
    with Siege(server, kinds, 2 * PLACES):
        time.sleep(OLD)
        found = looks(server, GOOD)
    assert [status for status, _ in found] == [200] * len(found), server.told()
    assert median(seconds for _, seconds in found) < WITHIN, found


@pytest.mark.parametrize(("files", "clients"), [(64, 100), (FILES, 400)])
def test_a_burst_beyond_the_places_is_answered_in_words(
    serve: StartServer, tmp_path: Path, files: int, clients: int
) -> None:
    """Each connects, waits a moment and sends a request in two parts, as many do."""
    server = start(serve, tmp_path, files)
    found: Counter[str] = Counter()
    content = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{HOST}Content-Length: {len(content)}\r\n\r\n".encode()

    async def ask() -> None:
        with trio.socket.socket() as sock:
            try:
                await sock.connect((server.host, server.port))
                await trio.sleep(0.05)
                await sock.send(head)
                await trio.lowlevel.checkpoint()
                await sock.send(content)
                found[await _answer(sock)] += 1
            except OSError as error:
                found[f"cut: {error}"] += 1

    async def burst() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(ask)

    for _ in range(3):
        trio.run(burst)
    assert found.total() == 3 * clients
    assert set(found) <= {"200", "503 busy, again in 1"}, found
    assert found["200"] >= 3, found
    wait(lambda: http(server, "GET", "/health").status, lambda status: status == 200)


async def _answer(sock: trio.socket.SocketType) -> str:
    """In short; fails for one that is not whole."""
    received = b""
    while True:
        data = await sock.recv(1 << 16)
        received += data
        head, found, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if found and length and len(body) >= int(length[1]):
            break
        if not data:
            return f"cut after {len(received)} bytes"
    status = head.split(b" ")[1].decode()
    if status == "200":
        assert json.loads(body)["choices"]
        return status
    again = re.search(rb"(?i)retry-after: (\d+)", head)
    return f"{status} {json.loads(body)['error']['reason']}, again in {again[1].decode() if again else None}"
