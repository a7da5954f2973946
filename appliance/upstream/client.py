"""HTTP/1.1 to a model process: one connection, one request, exact cancellation.

No pool: a connection costs well under a millisecond on loopback, and closing it is the only way to tell llama-server
that nobody wants the answer any more. Leaving `exchange` closes the socket at once, whatever the state of either side.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import trio
from msgspec import Struct

from appliance.core.http_body import BodyError, body_of
from appliance.core.http_head import HeadError, ResponseHead, read_response, write_request
from appliance.errors import Busy, UpstreamFailed

RECEIVE_SIZE = 1 << 14
SEND_AT_ONCE = 1 << 16
"""Bytes of body up to which head and body leave in one piece."""
MAX_HEAD = 1 << 16
"""Largest response head accepted; llama-server's is a few hundred bytes."""

NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
OWN_TO_THIS_HOP = HOP_BY_HOP | {
    b"accept-encoding",
    b"authorization",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
}
"""Request headers that speak of the client's connection or prove the client's identity; a child never sees them."""


class Address(Struct, frozen=True):
    """Where one model process listens. ``key`` is its own random API key; ``label`` names it in errors."""

    host: str
    port: int
    key: str | None
    label: str


Headers = Iterable[tuple[bytes, bytes]]


def forwardable(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's request headers that may travel on to a model process, names as received."""
    return [(name, value) for name, value in headers if name.lower() not in OWN_TO_THIS_HOP]


class Response:
    """A response whose head has arrived. ``headers`` keep their case; hop-by-hop ones are gone."""

    def __init__(self, address: Address, sock: socket.socket, method: str, head: ResponseHead, begun: bytes) -> None:
        self._address = address
        self._sock = sock
        self._begun = begun
        self._body = body_of(method, head.status, head.headers)
        self.status = head.status
        self.headers: list[tuple[bytes, bytes]] = [
            (name, value) for name, value in head.headers if name.lower() not in HOP_BY_HOP
        ]
        self.streaming: bool = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers
        )

    async def receive(self) -> bytes:
        """The next bytes of the body as they came, b"" after the last. Raises UpstreamFailed when cut short."""
        body = self._body
        try:
            if self._begun:
                begun, self._begun = self._begun, b""
                if content := body.feed(begun):
                    return content
            while not body.complete:
                data = await _receive(self._sock)
                if not data:
                    body.end()
                elif content := body.feed(data):
                    return content
            return b""
        except BodyError as cause:
            raise UpstreamFailed(self._address.label, f"its answer ended early or is garbled: {cause}") from None
        except OSError:
            raise UpstreamFailed(self._address.label, "it broke the connection") from None

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamFailed when it is longer than ``limit`` bytes."""
        body = bytearray()
        while chunk := await self.receive():
            body += chunk
            if len(body) > limit:
                raise UpstreamFailed(self._address.label, f"its answer is longer than {limit} bytes")
        return bytes(body)


@asynccontextmanager
async def exchange(
    address: Address, method: str, target: str, headers: Headers = (), body: bytes = b""
) -> AsyncGenerator[Response]:
    """Send one request and yield the response as soon as its head is here.

    The caller passes headers through `forwardable` first. Raises UpstreamFailed for a refused or broken connection and
    for anything that is not HTTP, Busy when this process or the system has no sockets left. There is no time limit: put
    a cancel scope around it.
    """
    request = _head(address, method, target, headers, body)
    sock = _socket(address)
    try:
        try:
            await trio.socket.from_stdlib_socket(sock).connect((address.host, address.port))
        except OSError as cause:
            raise _failure(address, f"it does not accept connections ({cause.strerror or cause})", cause) from None
        try:
            await _send(sock, request, body)
            found = await _read_head(sock)
            if found is None:
                raise UpstreamFailed(address.label, "it closed the connection without an answer")
            response = Response(address, sock, method, *found)
        except (HeadError, BodyError) as cause:
            raise UpstreamFailed(address.label, f"its answer is not HTTP ({cause})") from None
        except OSError as cause:
            raise _failure(address, "it broke the connection", cause) from None
        yield response
    finally:
        sock.close()


def _socket(address: Address) -> socket.socket:
    try:
        return socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    except OSError as cause:
        raise _failure(address, f"no socket can be made ({cause.strerror})", cause) from None


def _failure(address: Address, why: str, cause: OSError) -> UpstreamFailed | Busy:
    if cause.errno in NO_RESOURCES:
        return Busy(f"the system is out of resources ({cause.strerror})")
    return UpstreamFailed(address.label, why)


def _head(address: Address, method: str, target: str, headers: Headers, body: bytes) -> bytes:
    host = f"[{address.host}]" if ":" in address.host else address.host
    own = [(b"Host", f"{host}:{address.port}".encode()), (b"Connection", b"close")]
    if address.key is not None:
        own.append((b"Authorization", b"Bearer " + address.key.encode()))
    if body or method not in ("GET", "HEAD"):
        own.append((b"Content-Length", str(len(body)).encode()))
    return write_request(method, target, [*own, *headers])


async def _send(sock: socket.socket, head: bytes, body: bytes) -> None:
    try:
        for part in (head, body) if len(body) > SEND_AT_ONCE else (head + body,):
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[sock.send(rest) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)
    except (BrokenPipeError, ConnectionResetError):
        return  # it stopped reading: its answer, or the lack of one, is read next and tells why


async def _read_head(sock: socket.socket) -> tuple[ResponseHead, bytes] | None:
    """The final head and what came after it; None when the connection is closed before it."""
    received = b""
    while data := await _receive(sock):
        received += data
        while (end := received.find(b"\r\n\r\n")) >= 0:
            head = read_response(received[: end + 4])
            received = received[end + 4 :]
            if head.status >= 200:
                return head, received
        if len(received) > MAX_HEAD:
            raise HeadError("its head is too long")
    if received:
        raise HeadError("it ends in the middle of the head")
    return None


async def _receive(sock: socket.socket) -> bytes:
    """What has come, b"" at the end. Waits first: an engine computes before it speaks, so looking first is in vain."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(RECEIVE_SIZE)
        except BlockingIOError:
            continue
