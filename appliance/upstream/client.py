"""HTTP/1.1 to model processes and peers: one request at a time on a connection, exact cancellation.

`HttpCall` asks for the program itself, which reads the answer at its own pace. `relay` has a client get the answer: it
drives a `core.exchange.Exchange` from the task that calls it. If a task leaves either before the end of the answer, the
socket is closed at once, whatever the state of either side: that is the only way to tell llama-server that nobody wants
the answer any more. With a `Pool` a connection whose answer ended in good order is used again.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import trio
from msgspec import Struct

from appliance.core.bodies.http_message import BodyError, BodyReader, HeadError, write_request
from appliance.core.exchange import AnswerHead, Exchange, ExchangeClient, ExchangeState, RelayOptions, Stale, take_head
from appliance.errors import UpstreamFailed
from appliance.upstream.address import Address
from appliance.upstream.address import Headers as Headers
from appliance.upstream.address import address_of as address_of
from appliance.upstream.address import forwardable_to_peer as forwardable_to_peer
from appliance.upstream.connect import ConnectFailed as ConnectFailed
from appliance.upstream.connect import SocketWire, Wire, connect, failure
from appliance.upstream.pool import Pool
from appliance.upstream.proxy import authorization

SEND_AT_ONCE = 1 << 16
"""Bytes of body up to which head and body leave in one piece."""


class Progress(Protocol):
    """An observer of a request's progress."""

    def connected(self) -> None: ...

    def received(self) -> None:
        """A piece of the body has come, whatever becomes of it."""
        ...


class Outgoing(Struct, frozen=True):
    """One request to a server. ``headers`` hold none of `OWN_TO_THIS_HOP`; those for a peer went through
    `forwardable_to_peer`. A ``pool`` has connections to use, and gets this one back.
    """

    address: Address
    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""
    pool: Pool | None = None
    progress: Progress | None = None

    def head(self) -> bytes:
        """Raises UpstreamFailed for one that cannot be sent: something in it came from another server."""
        try:
            return _head(self.address, self.method, self.target, self.headers, self.body, stays=self.pool is not None)
        except HeadError as cause:  # a token, a session's id, a redirection
            raise UpstreamFailed(self.address.label, f"it cannot be asked: {cause}") from None

    def take(self) -> SocketWire | None:
        """A connection that waits in the pool."""
        return self.pool.take(self.address) if self.pool is not None else None

    async def connect(self) -> Wire:
        """A new connection. Raises ConnectFailed and Busy."""
        return await connect(self.address, self.pool.poller if self.pool is not None else None)

    def give(self, wire: Wire, *, reusable: bool) -> None:
        """It is not needed any more."""
        if reusable and self.pool is not None and isinstance(wire, SocketWire):
            self.pool.give(self.address, wire)
        else:
            wire.close()


# ---- for a client ----------------------------------------------------------------------------------------------------


class Flushing(ExchangeClient, Protocol):
    """A client's side that a task can wait for."""

    async def flush(self) -> None:
        """Return when the client has taken all that it was given."""
        ...


class RelayHooks(Protocol):
    """Calls of `relay` to its caller."""

    def began(self, exchange: Exchange) -> None:
        """The request is on its way, for the first time or again on a new connection."""
        ...

    def answered(self) -> None:
        """The server has said all, and the client does not have the end of it yet."""
        ...

    async def answering(self) -> None:
        """The head of the answer is here; the client gets it when this returns."""
        ...


async def relay(outgoing: Outgoing, options: RelayOptions, client: Flushing, hooks: RelayHooks | None = None) -> None:
    """Send a request, and have ``client`` get the answer; return when it has taken all.

    Raises ConnectFailed while no byte of the request has left, UpstreamFailed for a connection that broke later and for
    anything that is not HTTP, Busy when this process or the system has no sockets left, and what ``client`` raises. A
    broken event stream is cut where its last record ended, so that an error record can follow. There is no time limit
    but those of the address.
    """
    head, wire = outgoing.head(), outgoing.take()
    try:
        if wire is not None:
            try:
                await _Driver(outgoing, wire, client, hooks).run(head, options, reused=True)
                return
            except Stale:
                pass  # it was closed in the very moment in which it was taken
        await _Driver(outgoing, await outgoing.connect(), client, hooks).run(head, options, reused=False)
    except OSError as cause:
        raise failure(outgoing.address, "it broke the connection", cause) from None


class _Driver:
    """The `Io` of one exchange for the task that waits for it; see `core.exchange`."""

    def __init__(self, outgoing: Outgoing, wire: Wire, client: Flushing, hooks: RelayHooks | None) -> None:
        self._outgoing = outgoing
        self._wire = wire
        self._polled = wire if isinstance(wire, SocketWire) and wire.listens else None
        self._client = client
        self._hooks = hooks
        self._exchange: Exchange | None = None  # until it is over
        self._failure: Exception | None = None
        self._head_waits = False
        self._full = False
        self._news = trio.Event()
        self._patience = trio.CancelScope()  # until the head is here

    async def run(self, head: bytes, options: RelayOptions, *, reused: bool) -> None:
        """Raises what the exchange fails with."""
        outgoing, exchange = self._outgoing, Exchange(options, self._client, self, reused=reused)
        self._exchange = exchange
        if self._hooks is not None:
            self._hooks.began(exchange)
        if outgoing.progress is not None:
            outgoing.progress.connected()
        limit = outgoing.address.header_timeout
        try:
            with trio.move_on_after(math.inf if limit is None else limit) as self._patience:
                await self._send(head, outgoing.body)
                # This loop turns the exchange's calls into waits. Each call sets a flag and ``_news``. A flag is
                # cleared before its wait, and ``_news`` is replaced at once behind its own, so that a call that comes
                # meanwhile is seen in the next round.
                while exchange.state is not ExchangeState.OVER:
                    if self._head_waits and self._hooks is not None:
                        self._head_waits = False
                        await self._hooks.answering()
                        exchange.on_client_drained()
                    elif self._full:
                        self._full = False
                        await self._client.flush()
                        exchange.on_client_drained()
                    elif self._polled is not None:
                        await self._news.wait()
                        self._news = trio.Event()
                    else:
                        await self._receive(exchange)
            if self._patience.cancelled_caught:
                why = f"its answer did not begin within {limit:g} s (timeouts.responseHeader)"
                raise UpstreamFailed(outgoing.address.label, why)
        except Exception as error:
            exchange.cancel(error)
            raise
        finally:
            exchange.cancel(GONE)  # where this task was cancelled
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback leads back here: both would stay until Python looks for cycles

    async def _send(self, head: bytes, body: bytes) -> None:
        pieces = (head + body,) if len(body) <= SEND_AT_ONCE else (head, body)
        if self._polled is not None:
            for piece in pieces:
                self._polled.push(piece)
            self._listen()
            return
        try:
            for piece in pieces:
                await self._wire.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it stopped reading: its answer, or the lack of one, is read next and tells why

    async def _receive(self, exchange: Exchange) -> None:
        try:
            data = await self._wire.receive()
        except OSError:
            exchange.on_engine_ended(broken=True)
            return
        self._note(exchange)
        if data:
            exchange.on_engine_bytes(data)
        else:
            exchange.on_engine_ended()

    def _listen(self) -> None:
        assert self._polled is not None
        assert self._exchange is not None
        on_data = self._exchange.on_engine_bytes if self._outgoing.progress is None else self._on_data
        self._polled.listen(on_data, self._ended)

    def _on_data(self, data: bytes) -> bool:
        if self._exchange is None:
            return False
        self._note(self._exchange)
        return self._exchange.on_engine_bytes(data)

    def _note(self, exchange: Exchange) -> None:
        if self._outgoing.progress is not None and exchange.state is not ExchangeState.HEAD:
            self._outgoing.progress.received()

    def _ended(self) -> None:
        assert self._polled is not None
        if self._exchange is not None:
            self._exchange.on_engine_ended(broken=self._polled.broken)

    # ---- as `core.exchange.Io` ---------------------------------------------------------------------------------------

    def answering(self) -> bool:
        self._patience.deadline = math.inf
        self._head_waits = self._hooks is not None
        self._news.set()
        return not self._head_waits

    def when_drained(self) -> None:
        self._full = True
        self._news.set()

    def pause(self) -> None:
        if self._polled is not None:
            self._polled.stop_listening()

    def resume(self) -> None:
        if self._polled is not None:
            self._listen()

    def release(self, *, reusable: bool, failure: Exception | None = None) -> None:
        if self._polled is not None:
            self._polled.stop_listening()
        if self._hooks is not None:
            self._hooks.answered()
        self._outgoing.give(self._wire, reusable=reusable)

    def done(self, failure: Exception | None) -> None:
        self._exchange, self._failure = None, failure
        self._news.set()


class Gone(Exception):
    """The task that relayed an answer was cancelled."""


GONE = Gone()


# ---- for the program itself ------------------------------------------------------------------------------------------


class HttpAnswer:
    """An answer whose head has arrived, read by the task that asked."""

    def __init__(self, address: Address, wire: Wire, method: str, head: AnswerHead, begun: bytes) -> None:
        """Raises BodyError."""
        self.status = head.status
        self.headers = head.headers
        """Names keep their case; hop-by-hop ones are gone."""
        self.streaming = head.streaming
        self._label = address.label
        self._wire = wire
        self._stays = head.stays
        self._begun = begun
        self._body: BodyReader = head.body(method)

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
                if not data:
                    self._stays = False
                    body.end()
                elif content := body.feed(data):
                    return content
            return b""
        except BodyError as cause:
            raise UpstreamFailed(self._label, f"its answer ended early or is garbled: {cause}") from None
        except OSError:
            raise UpstreamFailed(self._label, "it broke the connection") from None

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamFailed when it is longer than ``limit`` bytes."""
        body = bytearray()
        while chunk := await self.receive():
            body += chunk
            if len(body) > limit:
                raise UpstreamFailed(self._label, f"its answer is longer than {limit} bytes")
        return bytes(body)


class HttpCall:
    """``async with`` sends one request and gives the `HttpAnswer` as soon as its head is here.

    Raises as `relay`. There is no time limit but those of the address: put a cancel scope around it.
    """

    def __init__(
        self,
        address: Address,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        pool: Pool | None = None,
    ) -> None:
        self._outgoing = Outgoing(address, method, target, headers, body, pool)
        self._head = self._outgoing.head()
        self._wire: Wire | None = None
        self._answer: HttpAnswer | None = None

    async def __aenter__(self) -> HttpAnswer:
        outgoing = self._outgoing
        address = outgoing.address
        self._wire = used = outgoing.take()
        try:
            wire = self._wire = self._wire or await outgoing.connect()
            found = await self._ask(wire, quiet=used is not None)
            if found is None and used is not None:  # it was closed in the very moment in which it was taken
                used.close()
                wire = self._wire = await outgoing.connect()
                found = await self._ask(wire, quiet=False)
            if found is None:
                raise UpstreamFailed(address.label, "it closed the connection without an answer")
            self._answer = HttpAnswer(address, wire, outgoing.method, found.head, found.rest)
            return self._answer
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
        if self._wire is not None:
            whole = kind is None and self._answer is not None and self._answer.reusable
            self._outgoing.give(self._wire, reusable=whole)

    async def _ask(self, wire: Wire, *, quiet: bool) -> FoundHead | None:
        """Send the request and read the head of its answer; None when the connection is closed before it.

        Raises HeadError, OSError and UpstreamFailed. ``quiet``: a connection that breaks first counts as closed.
        """
        address, body = self._outgoing.address, self._outgoing.body
        try:
            if len(body) > SEND_AT_ONCE:
                await wire.send(self._head)
                await wire.send(body)
            else:
                await wire.send(self._head + body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it stopped reading: its answer, or the lack of one, is read next and tells why
        try:
            if address.header_timeout is None:
                return await read_head(wire)
            with trio.move_on_after(address.header_timeout):
                return await read_head(wire)
        except ConnectionError:
            if quiet:
                return None
            raise
        why = f"its answer did not begin within {address.header_timeout:g} s (timeouts.responseHeader)"
        raise UpstreamFailed(address.label, why)


class FoundHead(NamedTuple):
    """A final head, its bytes, and what came after it."""

    head: AnswerHead
    raw: bytes
    rest: bytes


async def read_head(wire: Wire, *, upgrade: bool = False) -> FoundHead | None:
    """The final head, which may be a 101 after an ``upgrade``; None when the connection is closed before it.

    Raises HeadError and OSError.
    """
    received = b""
    while data := await wire.receive():
        received += data
        head, rest = take_head(received, upgrade=upgrade)
        if head is not None:
            end = len(received) - len(rest)
            interim = received.rfind(b"\r\n\r\n", 0, end - 4)
            return FoundHead(head, received[interim + 4 if interim >= 0 else 0 : end], rest)
        received = rest
    if received:
        raise HeadError("it ends in the middle of the head")
    return None


# ---- heads of requests -----------------------------------------------------------------------------------------------


def split_head(address: Address, method: str, target: str, headers: Headers) -> tuple[bytes, bytes] | None:
    """The head of a request: the body's length goes between the two parts. None for one that cannot be sent."""
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
    if address.relayed is not None:
        own += authorization(address.relayed)
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
