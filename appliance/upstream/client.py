"""HTTP/1.1 to a model process: one connection, one request, exact cancellation.

No pool: a connection costs well under a millisecond on loopback, and closing it is the only way to tell llama-server
that nobody wants the answer any more. Leaving `exchange` closes the socket at once, whatever the state of either side.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import h11
import trio
from msgspec import Struct

from appliance.errors import UpstreamFailed

RECEIVE_SIZE = 1 << 16
MAX_HEAD = 1 << 16
"""Largest response head accepted; llama-server's is a few hundred bytes."""

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

    def __init__(self, address: Address, stream: trio.SocketStream, connection: h11.Connection, head: h11.Response):
        self._address = address
        self._stream = stream
        self._connection = connection
        self.status: int = head.status_code
        self.headers: list[tuple[bytes, bytes]] = [
            (raw, value) for raw, value in head.headers.raw_items() if raw.lower() not in HOP_BY_HOP
        ]
        self.streaming: bool = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers
        )

    async def receive(self) -> bytes:
        """The next bytes of the body as they came, b"" after the last. Raises UpstreamFailed when cut short."""
        event = await _next_event(self._address, self._stream, self._connection)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return b""

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
    for anything that is not HTTP. There is no time limit: put a cancel scope around it.
    """
    sock = trio.socket.socket(trio.socket.AF_INET6 if ":" in address.host else trio.socket.AF_INET)
    try:
        try:
            await sock.connect((address.host, address.port))
        except OSError as cause:
            raise UpstreamFailed(address.label, f"it does not accept connections ({cause.strerror or cause})") from None
        stream = trio.SocketStream(sock)
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        await _send(stream, connection, _head(address, method, target, headers, body), body)
        head = await _next_event(address, stream, connection)
        while isinstance(head, h11.InformationalResponse):
            head = await _next_event(address, stream, connection)
        if not isinstance(head, h11.Response):
            raise UpstreamFailed(address.label, "it closed the connection without an answer")
        yield Response(address, stream, connection, head)
    finally:
        sock.close()


def _head(address: Address, method: str, target: str, headers: Headers, body: bytes) -> h11.Request:
    host = f"[{address.host}]" if ":" in address.host else address.host
    own = [(b"Host", f"{host}:{address.port}".encode()), (b"Connection", b"close")]
    if address.key is not None:
        own.append((b"Authorization", b"Bearer " + address.key.encode()))
    if body or method not in ("GET", "HEAD"):
        own.append((b"Content-Length", str(len(body)).encode()))
    return h11.Request(method=method, target=target, headers=[*own, *headers])


async def _send(stream: trio.SocketStream, connection: h11.Connection, head: h11.Request, body: bytes) -> None:
    out = connection.send(head) or b""
    parts = [out] if not body else [out, connection.send(h11.Data(data=body)) or b""]
    parts.append(connection.send(h11.EndOfMessage()) or b"")
    try:
        for part in parts if len(body) > RECEIVE_SIZE else (b"".join(parts),):
            if part:
                await stream.send_all(part)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # it stopped reading: its answer, or the lack of one, is read next and tells why


async def _next_event(address: Address, stream: trio.SocketStream, connection: h11.Connection) -> h11.Event:
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Event):
                return event
            connection.receive_data(await stream.receive_some(RECEIVE_SIZE))
    except h11.RemoteProtocolError as cause:
        raise UpstreamFailed(address.label, f"its answer ended early or is not HTTP ({cause})") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise UpstreamFailed(address.label, "it broke the connection") from None
