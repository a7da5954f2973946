"""nginx and haproxy in front of our reading of requests: nothing that a client sends is two requests to one of us only.

Behind the proxy stands a small server that answers whatever `core.bodies.http_request` and `core.bodies.http_message`
read or refuse, and names the target in the answer. A request that only we see is an answer that the proxy hands to
nobody, or to another client; so each client must get all answers that were given to what carries its number, in their
order.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from appliance.core.bodies.http_message import BodyError, Chunked
from appliance.core.bodies.http_request import RequestError, read_request

HOST = "127.0.0.1"
START = 10.0
"""Seconds that a proxy may take to listen."""
QUIET = 0.5
"""Seconds without a byte after which a client takes its request for answered."""
STUCK = 5.0
PAUSE = 0.05
"""Seconds between the head and the rest, for a proxy that does not wait for it."""
WHERE = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))

NGINX = """daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream ours {{ server {host}:{ours}; keepalive 8; }}
    server {{
        listen {host}:{port}; {options}
        location / {{ proxy_pass http://ours; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""
HAPROXY = """
global
    maxconn 300
defaults
    mode http
    timeout connect 2s
    timeout client 10s
    timeout server 10s
    http-reuse always
frontend front
    bind {host}:{port}
    {options}
    default_backend ours
backend ours
    server ours {host}:{ours}
"""


class Proxy(NamedTuple):
    """``whole``: it forwards a request when it has all of it."""

    program: str
    template: str
    options: str
    whole: bool


LENIENT = "proxy_request_buffering off; ignore_invalid_headers off; underscores_in_headers on; merge_slashes off;"
PROXIES = {
    "nginx": Proxy("nginx", NGINX, "", whole=True),
    "nginx, lenient": Proxy("nginx", NGINX, LENIENT, whole=False),
    "haproxy": Proxy("haproxy", HAPROXY, "option http-buffer-request", whole=True),
    "haproxy, lenient": Proxy("haproxy", HAPROXY, "option accept-invalid-http-request", whole=False),
}

SMUGGLED = b"GET /smuggled-%d HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LONG = b"Content-Length: 64\r\n"
NONE = b"0\r\n\r\n"


def post(lines: bytes, body: bytes = b"", version: bytes = b"1.1", first: bytes = b"POST /case-%d HTTP/") -> bytes:
    return first + version + b"\r\nHost: x\r\n" + lines + b"\r\n" + body


PLAIN = [
    post(b"", first=b"GET /case-%d HTTP/"),
    post(b"Content-Length: 5\r\n", b"hello"),
    post(CHUNKED, b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nA: b\r\n\r\n"),
    post(b"", b"", b"1.0"),
    post(b"Content-Length: 5\r\n", b"hello" + SMUGGLED),  # two requests to everybody
]
TRANSFER_CODINGS = (
    b"Transfer-Encoding : chunked|TRANSFER-ENCODING: chunked|Transfer_Encoding: chunked| Transfer-Encoding: chunked|"
    b"Transfer-Encoding:|Transfer-Encoding:chunked|Transfer-Encoding:\tchunked|Transfer-Encoding: Chunked|"
    b"Transfer-Encoding: xchunked|Transfer-Encoding: \x0bchunked|Transfer-Encoding: chunked\x00|"
    b'Transfer-Encoding: identity|Transfer-Encoding: chunked\t|Transfer-Encoding: "chunked"|'
    b"Transfer-Encoding: chunked;a=b|Transfer-Encoding: chunked, chunked|Transfer-Encoding: chunked, identity|"
    b"Transfer-Encoding: identity, chunked|Transfer-Encoding: gzip, chunked|Transfer-Encoding: \r\n chunked|"
    b"A: b\nTransfer-Encoding: chunked|A: b\rTransfer-Encoding: chunked|A: b\x00\r\nTransfer-Encoding: chunked|"
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity|"
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked|"
    b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked"
).split(b"|")
LENGTHS = (
    b"Content-Length: +5|Content-Length: -5|Content-Length: 0x5|Content-Length: 05|Content-Length: 5\t|"
    b"Content-Length: 5, 5|Content-Length: 5 5|Content-Length: 5;|Content-Length: |Content-Length: \r\n 5|"
    b"Content-Length : 5|Content_Length: 5|\x00Content-Length: 5| Content-Length: 5|A: b\nContent-Length: 5|"
    b"A: b\rContent-Length: 5|A: b\x00\r\nContent-Length: 5|Content-Length: 18446744073709551621|"
    b"Content-Length: 5\r\nContent-Length: 5|Content-Length: 5\r\nContent-Length: 0|"
    b"Connection: Content-Length\r\nContent-Length: 5"
).split(b"|")
CHUNKS = (
    b"0x5\r\nhello\r\n|5 \r\nhello\r\n|+5\r\nhello\r\n|5;\r\nhello\r\n|05\r\nhello\r\n|5\x0b\r\nhello\r\n|"
    b'10000000000000005\r\nhello\r\n|5;a\n\r\nhello\r\n|5;a\nb\r\nhello\r\n|5;a\rb\r\nhello\r\n|5;a="\r\nhello\r\n|'
    b"5\t;a\r\nhello\r\n|5\nhello\r\n|5\r\nhello\n|5\r\nhelloX|5\r\n\r\nhello|\r\n5\r\nhello\r\n|"
    b"1_0\r\n0123456789abcdef\r\n"
).split(b"|")
ENDS = (
    b"0\r\n\n|0\n\n|0\r\n\r\n\r\n|00\r\n\r\n|0\r\nA: b\n\r\n|0\r\nA\r\n\r\n|0;a\n\r\n\r\n|0\r\r\n\r\n|"
    b"0\r\nContent-Length: 64\r\n\r\n|0\r\nTransfer-Encoding: x\r\n\r\n|0\r\nHost: y\r\n\r\n|0\r\nA: b\r\n c\r\n\r\n"
).split(b"|")
ODD = [
    post(b"", SMUGGLED, b"1.0\r\nConnection: keep-alive"),
    post(CHUNKED, NONE + SMUGGLED, b"1.0\r\nConnection: keep-alive"),
    post(b"Content-Length: 5\r\n", b"hello" + SMUGGLED, b"1.0\r\nConnection: keep-alive"),
    post(LONG, SMUGGLED, first=b"GET /case-%d HTTP/"),
    post(LONG, SMUGGLED, first=b"HEAD /case-%d HTTP/"),
    post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", SMUGGLED),
    post(b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n", b"hello" + SMUGGLED),
    post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello" + SMUGGLED),
    post(b"Expect: 100-continue, x\r\n" + CHUNKED, NONE + SMUGGLED),
    post(b"Host: y\r\n"),
    post(b"A: \x01\x7f\xe9\r\n"),
    post(b"", first=b"GET http://y/case-%d HTTP/"),
    post(b"", first=b"GET /case-%d#a HTTP/"),
    post(b"", first=b"GET /case-%d HTTP/1.1 HTTP/"),
    post(b"", first=b"GET  /case-%d HTTP/"),
    post(b"", first=b"GET /case-%d\xe9 HTTP/"),
    post(b"", first=b"BREW /case-%d HTTP/"),
    post(b"", first=b"CONNECT case-%d:80 HTTP/"),
    post(b"", version=b"1.2"),
    post(b"", version=b"2.0"),
    b"\r\n\r\n" + post(b""),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    b"GET /case-%d HTTP/1.1\nHost: x\n\n" + SMUGGLED,
]
CASES = [
    *PLAIN,
    *(post(coding + b"\r\n" + LONG, NONE + SMUGGLED) for coding in TRANSFER_CODINGS),
    *(post(LONG + coding + b"\r\n", NONE + SMUGGLED) for coding in TRANSFER_CODINGS),
    *(post(coding + b"\r\n", NONE + SMUGGLED) for coding in TRANSFER_CODINGS),
    *(post(length + b"\r\n", b"hello" + SMUGGLED) for length in LENGTHS),
    *(post(CHUNKED, chunk + NONE + SMUGGLED) for chunk in CHUNKS),
    *(post(CHUNKED, b"5\r\nhello\r\n" + end + SMUGGLED) for end in ENDS),
    *ODD,
]
AFTER = b"GET /after-%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Ours:
    """What stands behind the proxy. ``answered``: what was said to which client, by its number."""

    def __init__(self) -> None:
        self.answered: defaultdict[int, list[bytes]] = defaultdict(list)
        self.unfinished: list[bytes] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection of the proxy's."""
        kept = b""
        async with stream:
            try:
                while (kept := await self._one(stream, kept)) is not None:
                    pass
            except trio.BrokenResourceError:
                pass

    async def _one(self, stream: trio.SocketStream, data: bytes) -> bytes | None:
        """Read and answer a request; what follows it, or None at the end of the connection."""
        while (end := data.find(b"\r\n\r\n", 4)) < 0:
            if not (more := await stream.receive_some(65536)):
                if data:
                    self.unfinished.append(data)
                return None
            data += more
        raw, data = data[: end + 4], data[end + 4 :]
        for _ in range(2):
            raw = raw.removeprefix(b"\r\n")
        try:
            head = read_request(raw)
            body = Chunked(pipelined=True)
            if head.length is None:
                body.feed(data)
            while not body.complete if head.length is None else len(data) < head.length:
                if not (more := await stream.receive_some(65536)):
                    self.unfinished.append(raw)
                    return None
                data += more
                if head.length is None:
                    body.feed(more)
        except (RequestError, BodyError):
            await self._answer(stream, raw, b"400", b"refused")
            return None
        await self._answer(stream, raw, b"200", head.target)
        rest = body.rest if head.length is None else data[head.length :]
        return rest if head.keep_alive else None

    async def _answer(self, stream: trio.SocketStream, raw: bytes, status: bytes, saw: bytes) -> None:
        number = re.search(rb"-(\d+)", raw)
        self.answered[int(number[1]) if number else -1].append(saw)
        await stream.send_all(b"HTTP/1.1 %b Said\r\nX-Saw: %b\r\nContent-Length: 0\r\n\r\n" % (status, saw))


@asynccontextmanager
async def proxied(proxy: Proxy, ours: Ours, port: int, folder: Path) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, ours.serve, 0, host=HOST))
        config = folder / "proxy.conf"
        behind = listeners[0].socket.getsockname()[1]
        config.write_text(
            proxy.template.format(folder=folder, host=HOST, port=port, ours=behind, options=proxy.options)
        )
        flags = ["-p", str(folder), "-c", str(config)] if proxy.program == "nginx" else ["-f", str(config)]
        with (folder / "proxy.out").open("wb") as out:
            argv = [str(shutil.which(proxy.program, path=WHERE)), *flags]
            command = partial(trio.run_process, argv, check=False, stdout=out, stderr=out)
            process: trio.Process = await nursery.start(command)
            with trio.fail_after(START):
                while True:
                    assert process.poll() is None, (folder / "proxy.out").read_text()
                    try:
                        await (await trio.open_tcp_stream(HOST, port)).aclose()
                    except OSError:
                        await trio.sleep(0.01)
                    else:
                        break
            yield
            nursery.cancel_scope.cancel()


async def receive(stream: trio.SocketStream, patience: float) -> bytes:
    with trio.move_on_after(patience):
        return bytes(await stream.receive_some(65536))
    return b""


async def ask(port: int, number: int, case: bytes, got: dict[int, list[bytes]], pause: float) -> None:
    """Send one case, and then a plain request on the same connection; note the answers that were ours."""
    head, end, rest = case.replace(b"%d", b"%d" % number).partition(b"\r\n\r\n")
    stream = await trio.open_tcp_stream(HOST, port)
    received = b""
    async with stream:
        try:
            await stream.send_all(head + end)
            await trio.sleep(pause)
            await stream.send_all(rest)
            if number < len(PLAIN):  # sure to be answered, however busy the machine is
                received += await receive(stream, START)
            while more := await receive(stream, QUIET):
                received += more
            await stream.send_all(AFTER % number)
            while more := await receive(stream, STUCK):
                received += more
        except trio.BrokenResourceError:
            pass
    got[number] = re.findall(rb"X-Saw: ([^\r\n]*)", received, re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.needs("nginx", "haproxy")
@pytest.mark.parametrize("proxy", PROXIES.values(), ids=PROXIES)
async def test_a_proxy_sees_the_requests_that_we_see(proxy: Proxy, free_port, tmp_path: Path) -> None:
    ours = Ours()
    got: dict[int, list[bytes]] = {}
    port = free_port()
    async with proxied(proxy, ours, port, tmp_path), trio.open_nursery() as clients:
        for number, case in enumerate(CASES):
            clients.start_soon(ask, port, number, case, got, 0 if proxy.whole else PAUSE)
    for number, case in enumerate(CASES):
        assert got[number] == ours.answered.pop(number, []), case
    assert not ours.answered, "something without a number was taken for a request"
    assert not (proxy.whole and ours.unfinished)
    for number in range(len(PLAIN)):
        assert got[number][0] == b"/case-%d" % number
        assert len(got[number]) == (1 if b"HTTP/1.0" in CASES[number] else 2 + CASES[number].count(b"smuggled"))
