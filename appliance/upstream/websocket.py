"""A websocket to a server: agreed on by that server, or its refusal as an HTTP answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from appliance.core.bodies.http_message import BodyError, HeadError
from appliance.core.exchange import SWITCHING
from appliance.errors import UpstreamFailed
from appliance.upstream.address import Address, Headers
from appliance.upstream.client import HttpAnswer, own_headers, read_head
from appliance.upstream.connect import Wire, connect

if TYPE_CHECKING:
    from trio_websocket import WebSocketConnection

MAX_MESSAGE = 64 << 20
"""Bytes, or characters, of one message; a longer one ends the connection with code 1009."""
HANDSHAKE_TIME = 60.0
"""Seconds for the answer to a handshake, where the address has no header timeout."""
CLOSE_TIME = 5.0
"""Seconds for the other side to answer a close."""
RECEIVE_SIZE = 1 << 16
NORMAL, NO_CODE, BROKEN = 1000, 1005, 1006


class Close(Struct, frozen=True):
    """The end of a websocket. `NO_CODE` and `BROKEN` are never sent: RFC 6455 section 7.4.1."""

    code: int
    reason: str = ""


class Websocket:
    """An open websocket, with a server or with a client. One task may send while another receives.

    ``ended`` is what ``connection`` raises once it is closed.
    """

    def __init__(self, connection: WebSocketConnection, ended: type[Exception]) -> None:
        self._connection = connection
        self._ended = ended

    @property
    def closed(self) -> Close:
        """The other side's end; valid once `receive` has returned None."""
        found = self._connection.closed
        return Close(BROKEN) if found is None else Close(int(found.code), found.reason or "")

    async def receive(self) -> str | bytes | None:
        """The next message, of the kind it was sent as; None after the last one."""
        try:
            return await self._connection.get_message()
        except self._ended:
            return None

    async def send(self, message: str | bytes) -> bool:
        """Returns when the system has taken it; False when it cannot arrive any more."""
        try:
            await self._connection.send_message(message)
        except self._ended:
            return False
        return True

    async def close(self, how: Close) -> None:
        """Send a close frame and wait a moment for the answer; nothing to do when the other side has sent one."""
        from wsproto.frame_protocol import CloseReason  # with h11, a twentieth of a start that joins no websocket

        code = CloseReason.NO_STATUS_RCVD if how.code == NO_CODE else how.code
        with trio.move_on_after(CLOSE_TIME):
            await self._connection.aclose(code, how.reason or None)


class UpstreamWebsocket(Websocket):
    """One with a server; made by `open_upstream_websocket`."""

    def __init__(self, connection: WebSocketConnection, ended: type[Exception]) -> None:
        super().__init__(connection, ended)
        self.subprotocol = connection.subprotocol
        self.headers = [
            header for header in connection.handshake_headers if not header[0].lower().startswith(b"sec-websocket-")
        ]
        """The handshake answer's headers, names in lower case, without those of the handshake itself."""


@asynccontextmanager
async def open_upstream_websocket(
    address: Address, target: str, headers: Headers = (), subprotocols: Sequence[str] = ()
) -> AsyncGenerator[UpstreamWebsocket | HttpAnswer]:
    """Ask for a websocket and yield it, or else the server's answer that says why there is none.

    ``headers``: see `Outgoing`. Raises what `HttpCall` raises.
    Leaving closes the connection at once; the caller sends the close frame.
    """
    wire = await connect(address)
    stream = _Stream(address, wire)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield await _shake_hands(nursery, stream, address, target, headers, subprotocols)
            except Exception as error:  # noqa: BLE001 - it is raised again, outside, where no group is made of it
                failure = error
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:  # trio-websocket's reader, which cannot digest every wrong answer
        failure = UpstreamFailed(address.label, f"its websocket is not valid ({group.exceptions[0]})")
    finally:
        wire.close()
    if failure is not None:
        raise failure


async def _shake_hands(
    nursery: trio.Nursery,
    stream: _Stream,
    address: Address,
    target: str,
    headers: Headers,
    subprotocols: Sequence[str],
) -> UpstreamWebsocket | HttpAnswer:
    # With all of importlib.metadata and email, for servers that have no websockets to join.
    from trio_websocket import ConnectionClosed, wrap_client_stream

    (_, host), *proof = own_headers(address)
    extra = [header for header in (*proof, *headers) if not header[0].lower().startswith(b"sec-websocket-")]
    seconds = address.header_timeout or HANDSHAKE_TIME
    with trio.move_on_after(seconds) as waiting:
        stream.stop = waiting.cancel
        connection = await wrap_client_stream(
            nursery,
            stream,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # any trio.abc.Stream does
            _usable(host, address),
            address.target(target),
            subprotocols=subprotocols,
            extra_headers=extra,
            max_message_size=MAX_MESSAGE,
            receive_buffer_size=RECEIVE_SIZE,
        )
        stream.is_open = True
        return UpstreamWebsocket(connection, ConnectionClosed)
    match stream.outcome:
        case HttpAnswer():
            return stream.outcome
        case None:
            raise UpstreamFailed(address.label, f"it did not answer the websocket's handshake within {seconds:g} s")
        case failure:
            raise failure


def _usable(host: bytes, address: Address) -> str:
    """wsproto writes only what could be a host name."""
    try:
        found = host.decode("ascii")
        found.encode("idna")
    except UnicodeError:
        return address.authority.decode()
    return found


class _Stream(trio.abc.Stream):
    """The connection as trio-websocket sees it, which waits for ever where a handshake fails.

    So the answer's head is read here: only one that agrees is passed on, any other outcome is kept and ``stop`` called.
    """

    def __init__(self, address: Address, wire: Wire) -> None:
        self._address = address
        self._wire = wire
        self._answered = False
        self.stop: Callable[[], object] = lambda: None
        self.is_open = False
        self.outcome: HttpAnswer | UpstreamFailed | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._wire.send(bytes(data))
        except OSError:
            raise trio.BrokenResourceError from None

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            if self._answered:
                return await self._wire.receive()
            self._answered = True
            found = await read_head(self._wire, upgrade=True)
            if found is None:
                self._fail("it closed the connection without an answer")
            elif found.head.status == SWITCHING:
                return found.raw + found.rest
            else:
                self.outcome = HttpAnswer(self._address, self._wire, "GET", found.head, found.rest)
        except (HeadError, BodyError) as cause:
            self._fail(f"its answer is not HTTP ({cause})")
        except OSError:
            if self.is_open:
                raise trio.BrokenResourceError from None
            self._fail("it broke the connection")
        self.stop()
        return await trio.sleep_forever()

    async def aclose(self) -> None:
        """While the handshake is under way: what trio-websocket does with an answer that it cannot accept."""
        if not self.is_open and self.outcome is None:
            self._fail("its answer to the handshake is not valid")
            self.stop()
        self._wire.close()
        await trio.lowlevel.checkpoint()

    def _fail(self, why: str) -> None:
        self.outcome = UpstreamFailed(self._address.label, why)
