"""HTTP/1.1 to a model process: one connection, one request, exact cancellation.

No pool: a connection costs well under a millisecond on loopback, and closing it is the only way to tell llama-server
that nobody wants the answer any more. Leaving `exchange` closes the socket at once, whatever the state of either side.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import trio

from appliance.core.http_body import BodyError, body_of
from appliance.core.http_head import HeadError, ResponseHead, read_response, write_request
from appliance.errors import UpstreamFailed
from appliance.upstream.address import HOP_BY_HOP, Address
from appliance.upstream.address import Headers as Headers
from appliance.upstream.address import address_of as address_of
from appliance.upstream.address import forwardable as forwardable
from appliance.upstream.address import forwardable_to_peer as forwardable_to_peer
from appliance.upstream.connect import connect
from appliance.upstream.wire import ConnectFailed as ConnectFailed
from appliance.upstream.wire import Wire, failure

SEND_AT_ONCE = 1 << 16
"""Bytes of body up to which head and body leave in one piece."""
MAX_HEAD = 1 << 16
"""Largest response head accepted; llama-server's is a few hundred bytes."""
SWITCHING = 101


class Progress(Protocol):
    """Who wants to know how far a request is."""

    def connected(self) -> None: ...

    def received(self) -> None:
        """A piece of the body has come, whatever becomes of it."""
        ...


class Response:
    """A response whose head has arrived. ``headers`` keep their case; hop-by-hop ones are gone."""

    def __init__(
        self,
        address: Address,
        wire: Wire,
        method: str,
        head: ResponseHead,
        begun: bytes,
        progress: Progress | None = None,
    ) -> None:
        self._address = address
        self._progress = progress
        self._wire = wire
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
                data = await self._wire.receive()
                if self._progress is not None:
                    self._progress.received()
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
    address: Address,
    method: str,
    target: str,
    headers: Headers = (),
    body: bytes = b"",
    *,
    progress: Progress | None = None,
) -> AsyncGenerator[Response]:
    """Send one request and yield the response as soon as its head is here.

    The caller passes headers through `forwardable` or `forwardable_to_peer` first. Raises ConnectFailed while no byte
    of the request has left, UpstreamFailed for a connection that broke later and for anything that is not HTTP, Busy
    when this process or the system has no sockets left. There is no time limit but those of the address: put a cancel
    scope around it. ``progress`` hears how far it is.
    """
    try:
        request = _head(address, method, target, headers, body)
    except HeadError as cause:  # in what another server gave out: a token, a session's id, a redirection
        raise UpstreamFailed(address.label, f"it cannot be asked: {cause}") from None
    wire = await connect(address)
    try:
        if progress is not None:
            progress.connected()
        try:
            await _send(wire, request, body)
            if address.header_timeout is None:
                found = await read_head(wire)
            else:
                found = await _read_head_in_time(wire, address, address.header_timeout)
            if found is None:
                raise UpstreamFailed(address.label, "it closed the connection without an answer")
            response = Response(address, wire, method, found.head, found.rest, progress)
        except (HeadError, BodyError) as cause:
            raise UpstreamFailed(address.label, f"its answer is not HTTP ({cause})") from None
        except OSError as cause:
            raise failure(address, "it broke the connection", cause) from None
        yield response
    finally:
        wire.close()


def own_headers(address: Address) -> list[tuple[bytes, bytes]]:
    """Host, and what proves who we are."""
    own = [(b"Host", address.host_header or address.authority), *address.key_headers]
    if address.key is not None:
        own.append((b"Authorization", b"Bearer " + address.key.encode()))
    return own


def _head(address: Address, method: str, target: str, headers: Headers, body: bytes) -> bytes:
    own = own_headers(address)
    own.append((b"Connection", b"close"))
    if body or method not in ("GET", "HEAD"):
        own.append((b"Content-Length", str(len(body)).encode()))
    return write_request(method, address.target(target), [*own, *headers])


async def _send(wire: Wire, head: bytes, body: bytes) -> None:
    try:
        if len(body) > SEND_AT_ONCE:
            await wire.send(head)
            await wire.send(body)
        else:
            await wire.send(head + body)
    except (BrokenPipeError, ConnectionResetError):
        return  # it stopped reading: its answer, or the lack of one, is read next and tells why


class Found(NamedTuple):
    """A final head, its bytes, and what came after it."""

    head: ResponseHead
    raw: bytes
    rest: bytes


async def _read_head_in_time(wire: Wire, address: Address, seconds: float) -> Found | None:
    with trio.move_on_after(seconds):
        return await read_head(wire)
    why = f"its answer did not begin within {seconds:g} s (timeouts.responseHeader)"
    raise UpstreamFailed(address.label, why)


async def read_head(wire: Wire, *, upgrade: bool = False) -> Found | None:
    """The final head, which may be a 101 after an ``upgrade``; None when the connection is closed before it.

    Raises HeadError and OSError.
    """
    received = b""
    while data := await wire.receive():
        received += data
        while (end := received.find(b"\r\n\r\n")) >= 0:
            raw, received = received[: end + 4], received[end + 4 :]
            head = read_response(raw)
            if head.status >= 200 or (upgrade and head.status == SWITCHING):
                return Found(head, raw, received)
        if len(received) > MAX_HEAD:
            raise HeadError("its head is too long")
    if received:
        raise HeadError("it ends in the middle of the head")
    return None
