"""The program's own connections with any answers behind them, and websocket servers for these to talk to."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from appliance.core.bodies.http_request import HttpHead
from appliance.core.settings import HttpSettings
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Bodies, Body
from appliance.http.bytes.connection import Answers, Connection
from appliance.http.sockets.handshake import Handshake, answer_handshake, websocket_context
from appliance.http.way.context import RequestContext
from appliance.platform.poller import open_poller
from appliance.traffic.record import Record
from appliance.traffic.request import Request, read_request

Handler = Callable[[WebSocketRequest], Awaitable[None]]
SETTINGS = HttpSettings(write_stall=10.0)
BODIES = Bodies(SETTINGS)


class Gateway:
    """The least that a gateway does; each test says how websockets and other requests are served."""

    bodies = BODIES

    def begin(self, connection: Connection, data: bytes) -> bool:
        """Everything gets a task."""
        return False

    async def answer(self, connection: Connection, head: HttpHead) -> bool:
        request = read_request(head, "", connection.peer)
        if head.upgrade == b"websocket":
            context = websocket_context(request, connection, head, self.bodies)
            await answer_handshake(context, connection, head, partial(self.join, request))
            return False
        body = Body(self.bodies, head.length, connection)
        sink = HttpSink(connection, head, body, ())
        try:
            await self.serve(RequestContext(request, None, sink, Record(request, request.path), body, connection))
        finally:
            body.release()
        return sink.stays and sink.ended

    async def join(self, request: Request, handshake: Handshake) -> None:
        """Serve a websocket."""
        raise NotImplementedError

    async def serve(self, context: RequestContext) -> None:
        """Serve any other request."""
        raise NotImplementedError


class Owner:
    """Of one connection."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.over = trio.Event()
        self._nursery = nursery

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(task)

    def closed(self, connection: Connection) -> None:
        self.over.set()


@asynccontextmanager
async def serving(answers: Answers, *, port: int = 0, settings: HttpSettings = SETTINGS) -> AsyncGenerator[int]:
    """Serve on a free port of the loopback; yields the port. Leaving breaks all connections."""
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")

    async def serve_one(stream: trio.SocketStream) -> None:
        accepted = stream.socket
        sock = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        sock.setblocking(False)
        owner = Owner(nursery)
        connection = Connection(sock, answers, poller, settings, owner)
        connection.begin()
        try:
            await owner.over.wait()
        finally:
            connection.abort()

    async with open_poller() as poller, trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, serve_one, [listener]))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def websocket_server(handler: Handler) -> AsyncGenerator[int]:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, handler, "127.0.0.1", 0, None, max_message_size=1 << 27))
        yield server.port
        nursery.cancel_scope.cancel()


async def echo(request: WebSocketRequest) -> None:
    names = request.proposed_subprotocols
    connection = await request.accept(subprotocol=names[-1] if names else None, extra_headers=[(b"X-Extra", b"1")])
    with suppress(ConnectionClosed):
        while True:
            await connection.send_message(await connection.get_message())
