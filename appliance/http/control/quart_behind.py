"""The program's own routes on Quart, behind Hypercorn's own server: one request of a connection at a time.

The connection has read the request, and lends itself for the answer: Hypercorn is given a stream that holds the
request as it came and ends when the answer is complete, so that the next request is the connection's again. The stream
bounds what Hypercorn would wait for without end: a client that stops reading.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from appliance.core.bodies.http_request import HttpHead
from appliance.core.headers import field, without
from appliance.errors import AdminOff
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.connection import Connection
from appliance.http.route_facts import MAX_LARGE_BODY, PLAIN, RouteFacts
from appliance.http.way.context import RequestContext
from appliance.http.way.guard import Guard
from appliance.http.way.routes import STREAM
from appliance.platform.tls_socket import TlsSocket
from appliance.traffic.request import TRUSTED, Request

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, Scope

_OF_THE_FRAME = frozenset((b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade"))


class QuartBehind:
    """Answers the routes of ``app``; ``facts`` are theirs, by endpoint. ``admin``: those that change it are open."""

    def __init__(self, app: QuartTrio, facts: Mapping[str, RouteFacts], guard: Guard, *, admin: bool) -> None:
        self._app = app
        self._map = app.url_map.bind("")
        self._facts = facts
        self._guard = guard
        self._admin = admin
        self._config = Config()
        self._config.errorlog = None
        self._config.accesslog = None
        self._config.include_date_header = True
        self._config.include_server_header = False
        self._config.h11_max_incomplete_size = MAX_LARGE_BODY

    def has_route(self, request: Request) -> bool:
        return bool(self._map.test(request.path, request.method))

    async def answer(
        self, request_context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead
    ) -> None:
        """Raises AdminOff, what reading the body raises, and what the application has failed with."""
        request, holder = request_context.request, self._guard.holder(request_context.request)
        request_context.follows = request.path == STREAM or request.path.startswith(f"{STREAM}/")
        facts = self._facts_of(request)
        door, trusted = facts.admin, request.peer == TRUSTED
        if door is not None and not (self._admin or (door.trusted and trusted)):
            raise AdminOff(door.what, door.verb)
        body = await request_context.body.read(facts.most)
        lent = _Lent(connection, _written(request, head, body))
        if facts.follows:
            connection.on_left = lent.over.set
            if connection.left:
                lent.over.set()
        context, over, failed = WorkerContext(None), ExitStack(), list[Exception]()

        async def tell(send: ASGISendCallable, event: ASGISendEvent) -> None:
            if failed:
                lent.muted = True  # Hypercorn has words of its own for an answer that never began
                await context.terminated.set()
                return
            if event["type"] == "http.response.start":
                own.status = event["status"]
                headers = [*event["headers"], (b"server", b"llama-appliance"), *own.own_headers]
                own.stays = (
                    own.stays and head.http_version == "1.1" and not connection.ending and request_context.body.complete
                )
                if field(headers, b"connection") is not None:
                    own.stays = False
                elif not own.stays:
                    headers.append((b"Connection", b"close"))
                event["headers"] = headers
            elif event["type"] == "http.response.body":
                own.sent += len(event["body"])
                if not event["more_body"]:
                    # Hypercorn does not wait for another request then, but closes `_Lent`. It has to know before: the
                    # application may be cancelled in the middle of its last word, which is sent anyway.
                    own.ended = True
                    await context.terminated.set()
            await send(event)

        async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            if scope["type"] != "http":
                return
            scope["scheme"] = "https" if connection.secure else "http"
            scope["path"] = request.path
            scope["state"] |= {"over": over, "failed": failed, "trusted": trusted, "holder": holder}
            await self._app(
                scope, receive if facts.follows else _without_farewell(receive), lambda event: tell(send, event)
            )

        stream = cast("trio.SSLStream[trio.SocketStream]", lent)  # it asks for less: see `_Lent`
        server = TCPServer(ASGIWrapper(app), self._config, context, {}, stream)
        try:
            with over:
                await server.run()
        finally:
            vars(server).clear()  # it and its protocol hold each other, with all of the request, until Python looks
        if failed:
            raise failed.pop()  # no name for it here, which its traceback would keep alive
        own.ended = own.ended and not connection.gone

    def _facts_of(self, request: Request) -> RouteFacts:
        """Return the facts about its route. Where there is none Quart says so, of a plain request."""
        try:
            endpoint, _ = self._map.match(request.path, request.method)
        except HTTPException:
            return PLAIN
        return self._facts[str(endpoint)]


class _Lent:
    """The connection as Hypercorn sees it: as much of a Trio stream as its server uses."""

    def __init__(self, connection: Connection, request: bytes) -> None:
        self.socket = _Name(connection.socket)
        self.over = trio.Event()
        """The answer is complete, or the client has left one that it was to follow."""
        self.muted = False
        """Nothing that is sent is for the client."""
        self._connection = connection
        self._request = request

    async def receive_some(self, most: int) -> bytes:
        """The request, piece by piece; then b"", when all is over."""
        piece, self._request = self._request[:most], self._request[most:]
        if not piece:
            await self.over.wait()
        return piece

    async def send_all(self, data: bytes) -> None:
        if self.muted:
            return
        await self._connection.write(data)
        if self._connection.gone:
            raise trio.BrokenResourceError

    async def aclose(self) -> None:
        self.over.set()
        await trio.lowlevel.checkpoint()


class _Name:
    """The names of a socket's two ends."""

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self.getpeername = sock.getpeername
        self.getsockname = sock.getsockname
        self.family = sock.family


def _written(request: Request, head: HttpHead, body: bytes) -> bytes:
    """The request as one that needs no more reading."""
    lines = [f"{request.method} {request.target} HTTP/{head.http_version}".encode()]
    lines += [b"%b: %b" % header for header in without(head.headers, _OF_THE_FRAME)]
    if body or head.length != 0:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _without_farewell(receive: Callable[[], Awaitable[ASGIReceiveEvent]]) -> ASGIReceiveCallable:
    """For short answers: a client that has closed its sending side may well still wait for one (``nc -N`` does)."""
    more = True

    async def receive_body() -> ASGIReceiveEvent:
        nonlocal more
        event = await receive()
        if event["type"] != "http.request":
            if not more:
                await trio.sleep_forever()
        else:
            more = event["more_body"]
        return event

    return receive_body
