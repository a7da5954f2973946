"""Lets a request in or not, and hands it to the pipeline or to the program's own routes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import trio
from msgspec import structs

from appliance.core.bodies.http_request import HttpHead
from appliance.core.records.activity import CLIENT_LEFT
from appliance.errors import Unauthorized
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Body, ClientLeft
from appliance.http.bytes.connection import Connection
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.http.way.explaining import explain, followed
from appliance.http.way.fast_path import FastPath, FastRequest, RequestEnder
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.routes import Route
from appliance.traffic.record import Record, RecordingSink
from appliance.traffic.request import Request, Sink, read_request, send_whole

STRANGERS = 4
"""Requests without a good key that begin while all other tasks have one turn: thousands at once delay nobody else."""
OWN = "own"
HEALTH = "/health"
WEBSOCKET = b"websocket"


class ModellessRoutes(Protocol):
    """Answers the requests that are for no model."""

    async def answer(self, context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead) -> None:
        """Raises ApplianceError and ClientLeft."""
        ...

    async def answer_with_file(self, context: RequestContext) -> bool:
        """Files instead of the page are public, and never hide a route. False: there is none."""
        ...


class Sockets(Protocol):
    """Answers websockets."""

    async def answer(self, request: Request, connection: Connection, head: HttpHead) -> None: ...


class Gateway:
    """One server's front door. Keeps no task of its own."""

    def __init__(
        self,
        edge: Edge,
        pipeline: Pipeline,
        own_routes: ModellessRoutes,
        sockets: Callable[[], Sockets],
        fast_path: Callable[[RequestEnder], FastPath],
    ) -> None:
        """``sockets`` makes what answers websockets, when the first one comes."""
        self._settings = edge.settings
        self._guard = edge.guard
        self._traffic = edge.traffic
        self._bodies = edge.bodies
        self._pipeline = pipeline
        self._own_routes = own_routes
        self._fast_path = fast_path(self)
        self._make_sockets = sockets
        self._sockets: Sockets | None = None
        self._turns = trio.Semaphore(STRANGERS)

    def begin(self, connection: Connection, data: bytes) -> bool:
        """See `Answers`."""
        return self._fast_path.begin(connection, data)

    async def answer(self, connection: Connection, head: HttpHead) -> bool:
        """See `Answers`."""
        connection.stranger = True
        request = read_request(head, self._settings.api_prefix, connection.peer)
        if self._settings.health is not None and request.path == self._settings.health:
            request = structs.replace(request, path=HEALTH, target=HEALTH)
        if head.upgrade and request.method == "GET" and WEBSOCKET in map(bytes.strip, head.upgrade.split(b",")):
            await self._join(request, connection, head)
            return False
        route = self._pipeline.route(request)
        record = Record(request, route.name if route is not None else request.path)
        body = Body(self._bodies, head.length, connection)
        own = HttpSink(connection, head, body, self._guard.cors_headers(request))
        answer = self._pipeline.hooks.spoken(request, own)
        metered = route is not None and route.metered
        sink = self._traffic.recorder.watch(record, followed(answer, route)) if metered else answer
        context = RequestContext(request, route, sink, record, body, connection)
        self._traffic.metrics.under_way += 1

        async with _Answering(self, context, own):
            known = self._guard.knows(request)
            if not known or (request.public and not self._guard.asks_for_key):
                await self._take_turn(connection)
            # A turn is over before the request is looked at. It spreads the beginnings of strangers' requests, and does
            # not count how long they take: a slow stranger holds up no other.
            if await self._let_in(context, known=known):
                record.admitted, connection.stranger = True, request.public
                if route is not None:
                    await self._pipeline.answer(context)
                else:
                    await self._own_routes.answer(context, own, connection, head)
        return own.stays and own.ended

    async def go_on_in_task(self, request: FastRequest, failure: Exception) -> bool:
        """See `fast_path.RequestEnder`."""
        record, own = request.record, request.own
        context = RequestContext(record.request, request.route, request.sink, record, request.body, request.connection)
        async with _Answering(self, context, own):
            await request.finish_in_task(context, failure)
        return own.stays and own.ended

    async def explain_in_task(self, request: FastRequest, raise_why: Callable[[], None]) -> bool:
        """See `fast_path.RequestEnder`."""
        record, own = request.record, request.own
        context = RequestContext(record.request, request.route, own, record, request.body, request.connection)
        async with _Answering(self, context, own):
            raise_why()
        return own.stays and own.ended

    def begin_request(self, context: RequestContext) -> None:
        """It may be ended from outside from now on."""
        self._traffic.lifetime.requests.begin(context.cancel, context.request)

    def end_request(self, context: RequestContext, own: HttpSink) -> None:
        """A request is over."""
        connection, record = context.client, context.record
        assert connection is not None
        connection.on_left = None
        self._traffic.lifetime.requests.end(context.cancel)
        if not context.body.complete:
            connection.mark_unread()
        self.write_down(context.route, context.sink, record, context.body, own, left=context.left, fault=context.fault)

    def write_down(
        self,
        route: Route | None,
        sink: Sink,
        record: Record,
        body: Body,
        own: HttpSink,
        *,
        left: bool,
        fault: int | None = None,
    ) -> None:
        """Write a request down. ``left``: its client was not there any more. ``fault``: see `RequestContext.fault`."""
        traffic, status = self._traffic, CLIENT_LEFT if left or own.status is None else own.status
        if fault is not None and not own.event_stream:
            status = fault
        if isinstance(sink, RecordingSink):
            status = sink.outcome(status)
        # Only the end of the request gives the body's room back. A request whose generation outlives it has handed the
        # room over before (`Body.hand_over`), and then this gives back nothing.
        body.release()
        traffic.metrics.under_way -= 1
        traffic.metrics.count(route.name if route else OWN, status, own.sent)
        if isinstance(sink, RecordingSink) and route is not None and record.admitted and not record.outlives:
            traffic.recorder.finish(record, sink, route.name, status)
        traffic.program_log.answered(record.request, status, own.sent, time.perf_counter() - record.began)

    async def _take_turn(self, connection: Connection) -> None:
        """Raises ClientLeft where another client has got the place meanwhile."""
        connection.queued = True
        async with self._turns:
            await trio.lowlevel.checkpoint()
        connection.queued = False
        if connection.gone:
            raise ClientLeft

    async def _let_in(self, context: RequestContext, *, known: bool) -> bool:
        """False when it has its answer already. Raises what is wrong with the request or its sender.

        ``known``: the request has a good key, or needs none.
        """
        request = context.request
        if request.method == "OPTIONS":
            await send_whole(context.sink, 200, ((b"Content-Type", b"text/html"),))
            return False
        self._guard.check_place(request)
        if self._guard.answers_alone(request):
            context.request = structs.replace(request, alone=True)
        if self._settings.static is not None and await self._own_routes.answer_with_file(context):
            return False
        if not request.public and not known:
            raise Unauthorized
        return True

    async def _join(self, request: Request, connection: Connection, head: HttpHead) -> None:
        """A websocket, for which more is imported than for all requests together."""
        self._sockets = self._sockets or self._make_sockets()
        await self._sockets.answer(request, connection, head)


class _Answering:
    """``async with`` answers a request within its scope. Every failure in the block becomes its answer."""

    def __init__(self, gateway: Gateway, context: RequestContext, own: HttpSink) -> None:
        self._gateway = gateway
        self._visit = context
        self._own = own

    async def __aenter__(self) -> None:
        self._gateway.begin_request(self._visit)
        self._visit.scope.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        context = self._visit
        try:
            try:
                # Three ends have to be distinguished here. The scope was cancelled by `RequestContext.cancel`: then the
                # reason is raised as ``why`` and becomes the answer. The block failed: its own error is the answer. The
                # task itself was cancelled: that passes on. The request ends in each case, or its client would count as
                # served for ever.
                ended = context.scope.__exit__(kind, error, traceback)
                context.raise_why()
            except Exception as why:  # noqa: BLE001  it becomes an answer, and a bug a line in the log
                await explain(context, why)
                return True
            if isinstance(error, Exception) and not ended:
                await explain(context, error)
                return True
            return ended
        finally:
            self._gateway.end_request(context, self._own)
