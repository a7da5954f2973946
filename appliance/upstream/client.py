"""HTTP/1.1 to model processes and peers: one request at a time on a connection, exact cancellation.

Leaving `Exchange` before the end of the answer closes the socket at once, whatever the state of either side: that is
the only way to tell llama-server that nobody wants the answer any more. With a `Pool` a connection whose answer ended
in good order is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import trio

from appliance.core.bodies.http_message import BodyError, HeadError, ResponseHead, body_of, read_response, write_request
from appliance.errors import UpstreamFailed
from appliance.upstream.address import HOP_BY_HOP, Address
from appliance.upstream.address import Headers as Headers
from appliance.upstream.address import address_of as address_of
from appliance.upstream.address import forwardable_to_peer as forwardable_to_peer
from appliance.upstream.connect import ConnectFailed as ConnectFailed
from appliance.upstream.connect import PlainWire, Wire, connect, failure
from appliance.upstream.pool import Pool

SEND_AT_ONCE = 1 << 16
"""Bytes of body up to which head and body leave in one piece."""
MAX_HEAD = 1 << 16
"""Largest response head accepted; llama-server's is a few hundred bytes."""
SWITCHING = 101


class Progress(Protocol):
    """An observer of a request's progress."""

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
        self.received = 0
        """Bytes behind the head so far, however they are framed."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.streaming = False
        self._stays = head.version == b"1.1"
        for header in head.headers:
            name = header[0].lower()
            if name not in HOP_BY_HOP:
                self.headers.append(header)
                if name == b"content-type" and header[1].startswith(b"text/event-stream"):
                    self.streaming = True
            elif name == b"connection" and b"close" in header[1].lower():
                self._stays = False

    @property
    def reusable(self) -> bool:
        """The answer has ended in good order, and the server leaves the connection open."""
        return self._stays and self._body.complete and not self._begun

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
                self.received += len(data)
                if self._progress is not None:
                    self._progress.received()
                if not data:
                    body.end()
                elif content := body.feed(data):
                    return content
            return b""
        except BodyError as cause:
            raise self._garbled(cause) from None
        except OSError:
            raise UpstreamFailed(self._address.label, "it broke the connection") from None

    @property
    def complete(self) -> bool:
        """The body has ended."""
        return self._body.complete

    async def each(self, take: Callable[[bytes], bool]) -> bool:
        """Call ``take`` with the bytes of the body as they come; True when that was all of it.

        ``take`` never waits; where it returns False, so does this, for the caller to wait for what ``take`` lacks and
        call again. Raises as `receive`, and what ``take`` raises.
        """
        try:
            if self._begun:
                begun, self._begun = self._begun, b""
                if not self.hear(take, begun):
                    return self._body.complete
            if not self._body.complete:
                await self._wire.each(partial(self._hear_watched if self._progress is not None else self.hear, take))
        except OSError:
            raise UpstreamFailed(self._address.label, "it broke the connection") from None
        return self._body.complete

    def hear(self, take: Callable[[bytes], bool], data: bytes) -> bool:
        """Bytes from the wire, b"" at its end: ``take`` gets those of the body. True while it goes on.

        False: it is `complete`, or ``take`` returned False. Raises UpstreamFailed when it is cut short or garbled.
        """
        body = self._body
        self.received += len(data)
        try:
            if not data:
                body.end()
                return False
            content = body.feed(data)
        except BodyError as cause:
            raise self._garbled(cause) from None
        return (not content or take(content)) and not body.complete

    def _hear_watched(self, take: Callable[[bytes], bool], data: bytes) -> bool:
        assert self._progress is not None
        self._progress.received()
        return self.hear(take, data)

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamFailed when it is longer than ``limit`` bytes."""
        body = bytearray()
        while chunk := await self.receive():
            body += chunk
            if len(body) > limit:
                raise UpstreamFailed(self._address.label, f"its answer is longer than {limit} bytes")
        return bytes(body)

    def _garbled(self, cause: BodyError) -> UpstreamFailed:
        return UpstreamFailed(self._address.label, f"its answer ended early or is garbled: {cause}")


class Begun:
    """An exchange on a wire that nothing has been awaited for yet: see `Exchange`.

    ``unsent`` is left of the request, ``received`` has come of the answer's head; ``response`` is there once that has.
    ``reused``: the wire has carried another request before.
    """

    __slots__ = ("received", "response", "reused", "unsent", "wire")

    def __init__(self, wire: PlainWire, unsent: bytes, *, reused: bool) -> None:
        self.wire = wire
        self.reused = reused
        self.unsent = unsent
        self.received = b""
        self.response: Response | None = None

    def hear_head(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """More of the answer: its head, when that is whole, and what came behind it.

        Raises HeadError, also for one that is not final: `read_head` reads on. Whatever happens, ``received`` has all.
        """
        self.received = received = self.received + data if self.received else data
        end = received.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(received) > MAX_HEAD:
                raise HeadError("its head is too long")
            return None
        head = read_response(received[:end])
        if head.status < 200:
            raise HeadError("it is not final")
        return head, received[end:]


class Exchange:
    """``async with`` sends one request and gives the `Response` as soon as its head is here.

    ``headers`` hold none of `OWN_TO_THIS_HOP`; those for a peer went through `forwardable_to_peer`. Raises
    ConnectFailed while no byte of the request has left, UpstreamFailed for a connection that broke later and for
    anything that is not HTTP, Busy when this process or the system has no sockets left. There is no time limit but
    those of the address: put a cancel scope around it. ``progress`` hears how far it is. ``pool`` has connections to
    use, and gets this one back. ``begun`` goes on with what has been sent on a wire, and takes that over.
    """

    def __init__(
        self,
        address: Address,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        progress: Progress | None = None,
        pool: Pool | None = None,
        begun: Begun | None = None,
    ) -> None:
        self._address = address
        self._begun = begun
        self._method = method
        self._body = body
        self._progress = progress
        self._pool = None if address.tls else pool
        self._wire: Wire | None = None
        self._response: Response | None = None
        try:
            self._head = _head(address, method, target, headers, body, stays=self._pool is not None)
        except HeadError as cause:  # in what another server gave out: a token, a session's id, a redirection
            raise UpstreamFailed(address.label, f"it cannot be asked: {cause}") from None

    async def __aenter__(self) -> Response:
        address, pool, begun = self._address, self._pool, self._begun
        wire: Wire | None = begun.wire if begun is not None else pool.take(address) if pool is not None else None
        used_before = begun.reused if begun is not None else wire is not None
        try:
            self._wire = wire = wire or await connect(address, pool.poller if pool is not None else None)
            if begun is not None and begun.response is not None:
                self._response = begun.response
                return begun.response
            if self._progress is not None:
                self._progress.connected()
            if begun is not None:
                found = await _ask(wire, address, begun.unsent, b"", received=begun.received, quiet=used_before)
            else:
                found = await _ask(wire, address, self._head, self._body, quiet=used_before)
            if found is None and used_before and pool is not None:
                # It was closed in the very moment in which it was taken: no byte of an answer has come.
                wire.close()
                self._wire = wire = await connect(address, pool.poller)
                found = await _ask(wire, address, self._head, self._body)
            if found is None:
                raise UpstreamFailed(address.label, "it closed the connection without an answer")
            self._response = Response(address, wire, self._method, found.head, found.rest, self._progress)
            return self._response
        except BaseException as error:
            if self._wire is not None:
                self._wire.close()
            match error:
                case HeadError() | BodyError():
                    raise UpstreamFailed(address.label, f"its answer is not HTTP ({error})") from None
                case OSError():
                    raise failure(address, "it broke the connection", error) from None
                case _:
                    raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        wire, response = self._wire, self._response
        good = kind is None and response is not None and response.reusable
        if good and self._pool is not None and isinstance(wire, PlainWire):
            self._pool.give(self._address, wire)
        elif wire is not None:
            wire.close()


def split_head(address: Address, method: str, target: str, headers: Headers) -> tuple[bytes, bytes] | None:
    """The head of an `Exchange`: the body's length goes between the two parts. None for one that cannot be sent."""
    mark = b"\r\nContent-Length: "
    try:
        head = _head(address, method, target, headers, b"?", stays=True)
    except HeadError:
        return None
    before, _, behind = head.partition(mark + b"1")
    return before + mark, behind


def own_headers(address: Address) -> list[tuple[bytes, bytes]]:
    """Host, and what proves who we are."""
    own = [(b"Host", address.host_header or address.authority), *address.key_headers]
    if address.key is not None:
        own.append((b"Authorization", b"Bearer " + address.key.encode()))
    return own


def _head(address: Address, method: str, target: str, headers: Headers, body: bytes, *, stays: bool) -> bytes:
    own = own_headers(address)
    if not stays:
        own.append((b"Connection", b"close"))
    if body or method not in ("GET", "HEAD"):
        own.append((b"Content-Length", b"%d" % len(body)))
    return write_request(method, address.target(target), [*own, *headers])


async def _ask(
    wire: Wire, address: Address, head: bytes, body: bytes, *, received: bytes = b"", quiet: bool = False
) -> Found | None:
    """Send the request and read the head of its answer; None when the connection is closed before it.

    Raises HeadError, OSError and UpstreamFailed. ``quiet``: a connection that breaks first counts as closed.
    """
    try:
        if len(body) > SEND_AT_ONCE:
            await wire.send(head)
            await wire.send(body)
        else:
            await wire.send(head + body)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it stopped reading: its answer, or the lack of one, is read next and tells why
    try:
        if address.header_timeout is None:
            return await read_head(wire, received)
        return await _read_head_in_time(wire, address, address.header_timeout)
    except ConnectionError:
        if quiet:
            return None
        raise


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


async def read_head(wire: Wire, received: bytes = b"", *, upgrade: bool = False) -> Found | None:
    """The final head, which may be a 101 after an ``upgrade``; None when the connection is closed before it.

    ``received`` has come already. Raises HeadError and OSError.
    """
    while True:
        while (end := received.find(b"\r\n\r\n")) >= 0:
            raw, received = received[: end + 4], received[end + 4 :]
            head = read_response(raw)
            if head.status >= 200 or (upgrade and head.status == SWITCHING):
                return Found(head, raw, received)
        if len(received) > MAX_HEAD:
            raise HeadError("its head is too long")
        data = await wire.receive()
        if not data:
            break
        received += data
    if received:
        raise HeadError("it ends in the middle of the head")
    return None
