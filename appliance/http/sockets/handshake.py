"""A client that asks for a websocket, and the websocket on the program's own connection."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from wsproto.frame_protocol import FrameProtocol
from wsproto.utilities import LocalProtocolError

from appliance.core.bodies.http_request import VERSION, HttpHead, UpgradeOffer, read_offer
from appliance.core.bodies.pace import Pace
from appliance.errors import ApplianceError, BadRequest, RequestCancelled, ShuttingDown
from appliance.http import errors
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Bodies, Body, ClientLeft
from appliance.http.bytes.connection import Connection
from appliance.http.way.context import RequestContext
from appliance.http.way.explaining import explain
from appliance.traffic.record import Record
from appliance.traffic.request import Headers, Request, send_whole
from appliance.trio_parts import beside
from appliance.upstream.websocket import BROKEN, CLOSE_TIME, MAX_MESSAGE, RECEIVE_SIZE, Close, Websocket

if TYPE_CHECKING:
    from trio_websocket import WebSocketConnection

GOING_AWAY, INTERNAL = 1001, 1011
"""RFC 6455 section 7.4.1."""
FREE = 1 << 16
"""Bytes of an unfinished message that do not count against the budget of bodies: a connection reads so many at once."""
MAX_HELD = 1 << 20
"""Bytes of an unfinished message that a client may leave without its end."""
_GOODBYE = 0x88
"""The first byte of a close frame."""

log = logging.getLogger(__name__)


def websocket_context(request: Request, connection: Connection, head: HttpHead, bodies: Bodies) -> RequestContext:
    """The context of a client that asks for a websocket. Its sink is for a refusal, which ends the connection."""
    body = Body(bodies, head.length, connection)
    sink = HttpSink(connection, head, body, (VERSION,))
    sink.stays = False
    return RequestContext(request, None, sink, Record(request, request.path), body, connection)


class Handshake:
    """The opening request of one client. It is answered once, with `accept` or `refuse`."""

    def __init__(
        self, context: RequestContext, connection: Connection, offer: UpgradeOffer, nursery: trio.Nursery
    ) -> None:
        self.subprotocols = offer.subprotocols
        """The subprotocols that the client offers."""
        self.websocket: Websocket | None = None
        """The websocket, once it was accepted."""
        self._visit = context
        self._connection = connection
        self._offer = offer
        self._nursery = nursery

    async def accept(
        self, subprotocol: str | None = None, headers: Headers = (), *, most: int = MAX_MESSAGE
    ) -> Websocket:
        """``headers`` go out with the answer. A client's message of more than ``most`` bytes ends the websocket.

        The part of a message that has come counts against the budget of bodies until the message is received here.
        Raises ClientLeft.
        """
        # With all of importlib.metadata and email, for clients that have no websockets.
        from trio_websocket import ConnectionClosed, wrap_server_stream

        self._connection.on_left = self._client_left
        stream = _Stream(self._connection, self._offer.written(), self._visit)
        request = await wrap_server_stream(
            self._nursery,
            stream,
            message_queue_size=0,
            max_message_size=most,
            receive_buffer_size=RECEIVE_SIZE,
        )
        try:
            connection = await request.accept(subprotocol=subprotocol, extra_headers=list(headers))
        except ConnectionClosed:
            raise ClientLeft from None
        self.websocket = stream.websocket = _ClientWebsocket(connection, ConnectionClosed, stream)
        return self.websocket

    async def refuse(self, status: int, headers: Headers, content: bytes) -> None:
        """Answer in HTTP that there is no websocket."""
        self._connection.on_left = None
        await send_whole(self._visit.sink, status, headers, content)

    async def fail(self, error: Exception) -> None:
        """Tell the client what went wrong, in the form that is still possible."""
        if self.websocket is None:
            await explain(self._visit, error)
            return
        match error:
            case ClientLeft():
                return
            case ShuttingDown() | RequestCancelled():
                how = Close(GOING_AWAY, str(error))
            case ApplianceError():
                how = Close(INTERNAL, str(error))
            case _:
                bug = secrets.token_hex(4)
                log.error(
                    "internal error %s at websocket %r; this is a bug", bug, self._visit.request.path, exc_info=error
                )
                how = Close(INTERNAL, errors.describe_bug(bug).message)
        await self.websocket.close(how)

    def _client_left(self) -> None:
        """Give the work CLOSE_TIME: a client that reads slowly may still get what was sent before."""
        self._visit.scope.deadline = trio.current_time() + CLOSE_TIME


async def answer_handshake(
    context: RequestContext, connection: Connection, head: HttpHead, work: Callable[[Handshake], Awaitable[None]]
) -> None:
    """Have ``work`` answer a client that asks for a websocket, and keep what it accepts until ``work`` returns.

    A failure becomes an answer in HTTP before the websocket is accepted, and a close frame after. A client that
    leaves ends it, at once where it still waits for its answer. ``context`` is from `websocket_context`.
    """
    try:
        offer = read_offer(head)
    except BadRequest as error:
        connection.mark_unread()
        await explain(context, error)
        return
    handshake: Handshake | None = None
    try:
        async with beside() as nursery:
            handshake = Handshake(context, connection, offer, nursery)
            try:
                context.stay()
                with context.scope:
                    await work(handshake)
                context.raise_why()
                if context.scope.cancelled_caught:
                    raise ClientLeft
            except Exception as error:  # noqa: BLE001  it becomes an answer, or a close frame
                await handshake.fail(error)
    except* LocalProtocolError:  # trio-websocket's reader was to answer a ping behind our own close frame
        pass
    finally:
        connection.on_left = None
        context.body.release()
        if handshake is not None and handshake.websocket is not None:
            connection.mark_unread()  # it may still be sending: closing now would discard the error response


class _ClientWebsocket(Websocket):
    def __init__(self, connection: WebSocketConnection, ended: type[Exception], stream: _Stream) -> None:
        super().__init__(connection, ended)
        self._stream = stream

    async def receive(self) -> str | bytes | None:
        message = await super().receive()
        self._stream.forget()
        return message


class _Stream(trio.abc.Stream):
    """The connection as trio-websocket sees it: a handshake, then what the client says once that is accepted.

    trio-websocket answers every close frame but the one that it makes up itself where the client broke the protocol: so
    `aclose` says that. The connection is closed by its own task.
    """

    def __init__(self, connection: Connection, handshake: bytes, context: RequestContext) -> None:
        self.websocket: Websocket | None = None
        self._connection = connection
        self._handshake = handshake
        self._visit = context
        self._unfinished = 0
        self._pace = Pace()
        self._answered = trio.Event()
        self._said_goodbye = False
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Raises BrokenResourceError when the client is gone, or has taken nothing for as long as it may."""
        self._check()
        self._said_goodbye = data[0] == _GOODBYE
        await self._connection.write(bytes(data))
        self._check()
        self._answered.set()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Messages that come too early wait until the handshake is answered: trio-websocket would lose them."""
        if self._handshake:
            handshake, self._handshake = self._handshake, b""
            return handshake
        await self._answered.wait()
        self._check()
        try:
            data = self._connection.rest() or await self._receive(max_bytes or RECEIVE_SIZE)
            self._unfinished += len(data)
            self._visit.body.grow_to(max(self._unfinished - FREE, 0))
        except ApplianceError as error:
            self._visit.cancel(error)
            await trio.sleep_forever()
        return data

    async def _receive(self, size: int) -> bytes:
        """A message of which much is held has to come on as fast as a body. Raises BodyTooSlow."""
        if self._unfinished < MAX_HELD:
            return await self._connection.receive(size)
        try:
            return await self._connection.receive_at(self._pace, size)
        except ClientLeft:
            return b""

    def forget(self) -> None:
        """A message is whole, and was taken."""
        self._unfinished, self._pace = 0, Pace()
        self._visit.body.release()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._connection.gone:
                self._connection.interrupt()
            end = self.websocket.closed if self.websocket is not None else Close(BROKEN)
            if not self._said_goodbye and end.code != BROKEN:
                await self._connection.write(bytes(FrameProtocol(False, []).close(end.code, end.reason)))
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._connection.gone:
            raise trio.BrokenResourceError
