"""Lets a request in or not, and hands it to the pipeline or to the program's own routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from msgspec import structs

from appliance.core.bodies.http_request import Head
from appliance.core.settings import HttpSettings
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Bodies, Body
from appliance.http.bytes.connection import Connection
from appliance.http.control.own_routes import OwnRoutes
from appliance.http.owners import Owners
from appliance.http.way.explaining import explain
from appliance.http.way.guard import Guard
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.visit import Visit
from appliance.traffic.record import CLIENT_LEFT, Record, RecordingSink
from appliance.traffic.request import Request, read_request, send_whole
from appliance.traffic.traffic import Traffic

if TYPE_CHECKING:
    from appliance.http.sockets.sockets import Sockets

OWN = "own"
HEALTH = "/health"
WEBSOCKET = b"websocket"


class Gateway:
    """One server's front door. Keeps no task of its own."""

    def __init__(
        self,
        settings: HttpSettings,
        guard: Guard,
        traffic: Traffic,
        bodies: Bodies,
        owners: Owners,
        pipeline: Pipeline,
        own_routes: OwnRoutes,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._traffic = traffic
        self._bodies = bodies
        self._owners = owners
        self._pipeline = pipeline
        self._own_routes = own_routes
        self._sockets: Sockets | None = None

    async def answer(self, connection: Connection, head: Head) -> bool:
        """See `Answers`. Whatever goes wrong becomes an answer here."""
        began = trio.current_time()
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
        recorder, metrics, requests = self._traffic.recorder, self._traffic.metrics, self._traffic.lifetime.requests
        sink = recorder.watch(record, own) if route is not None and route.metered else own
        visit = Visit(request, route, sink, record, body, connection)
        metrics.under_way += 1
        requests.begin(visit.cancel)
        try:
            with visit.scope:
                if await self._let_in(visit):
                    record.admitted = True
                    if route is not None:
                        await self._pipeline.answer(visit)
                    else:
                        await self._own_routes.answer(visit, own, connection, head)
            if visit.why is not None and visit.scope.cancelled_caught:
                raise visit.why
        except Exception as error:  # noqa: BLE001  it becomes an answer, and a bug a line in the log
            await explain(visit, error)
        finally:
            connection.leaving = None
            requests.end(visit.cancel)
            body.release()
            if not body.complete:
                connection.owe()
            metrics.under_way -= 1
            status = CLIENT_LEFT if visit.left or own.status is None else own.status
            if visit.fault is not None and not own.event_stream:
                status = visit.fault
            metrics.count(route.name if route else OWN, status, own.sent)
            if isinstance(sink, RecordingSink) and route is not None and record.admitted and not record.outlives:
                recorder.finish(record, sink, route.name, status)
            self._traffic.program_log.answered(request, status, own.sent, trio.current_time() - began)
        return own.stays and own.ended

    async def _let_in(self, visit: Visit) -> bool:
        """False when it has its answer already. Raises what is wrong with the request or its sender."""
        request = visit.request
        if request.method == "OPTIONS":
            await send_whole(visit.sink, 200, ((b"Content-Type", b"text/html"),))
            return False
        self._guard.check_place(request)
        if self._settings.static is not None and await self._own_routes.answer_with_file(visit):
            return False
        if not request.public:
            self._guard.check_key(request)
        return True

    async def _join(self, request: Request, connection: Connection, head: Head) -> None:
        """A websocket, for which more is imported than for all requests together."""
        if self._sockets is None:
            from appliance.http.sockets.sockets import Sockets

            self._sockets = Sockets(self._guard, self._traffic, self._bodies, self._owners, self._pipeline)
        await self._sockets.answer(request, connection, head)
