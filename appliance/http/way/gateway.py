"""Lets a request in or not, and hands it to the pipeline or to the program's own routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from msgspec import structs

from appliance.core.http_request import Head
from appliance.errors import ApplianceError, RouteNotFound
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Body
from appliance.http.bytes.connection import Connection
from appliance.http.control.cors_proxy import CORS_PROXY, CorsProxy
from appliance.http.control.predict import Predict
from appliance.http.control.static_files import StaticFiles
from appliance.http.control.tool_routes import TOOLS, ToolRoutes
from appliance.http.sockets.sockets import Sockets
from appliance.http.way.explaining import explain
from appliance.http.way.front import Front
from appliance.http.way.handover import Handover
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.routes import (
    MCP,
    OTHER,
    UPSTREAM,
    Route,
    below,
    is_passed,
    model_route,
    passed_route,
    single_route,
)
from appliance.http.way.visit import Visit
from appliance.traffic.record import CLIENT_LEFT, Record, RecordingSink
from appliance.traffic.request import PAGE_PATHS, Request, read_request
from appliance.traffic.sink import send_whole

if TYPE_CHECKING:
    from appliance.http.control.quart_behind import QuartBehind
    from appliance.http.mcp.server import McpServer

OWN = "own"
HEALTH = "/health"
WEBSOCKET = b"websocket"


class Gateway:
    """One server's front door. Keeps no task of its own."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.settings
        self._guard = front.guard
        self._lifetime = front.lifetime
        self._metrics = front.metrics
        self._recorder = front.recorder
        self._bodies = front.bodies
        self._pipeline = Pipeline(front, front.bodies)
        front.inward.attach(self.answer_inward)
        self._sockets = Sockets(front, self._pipeline)
        self._files = StaticFiles(front.settings.static) if front.settings.static is not None else None
        self._cors_proxy = CorsProxy(front.settings)
        self._mcp = _mcp_server(front) if front.settings.mcp_server else None
        self._tools = ToolRoutes(front.owners.tools, front.lifetime)
        self._predict = Predict(front)
        self._control: QuartBehind | None = None
        self._making_control = trio.Lock()

    async def answer(self, connection: Connection, head: Head) -> bool:
        """See `Answers`. Whatever goes wrong becomes an answer here."""
        began = trio.current_time()
        request = read_request(head, self._settings.api_prefix, connection.peer)
        if self._settings.health is not None and request.path == self._settings.health:
            request = structs.replace(request, path=HEALTH, target=HEALTH)
        if WEBSOCKET in head.upgrade and request.method == "GET":
            await self._sockets.answer(request, connection, head)
            return False
        route = self._route(request)
        record = Record(request, route.name if route is not None else request.path)
        body = Body(self._bodies, head.length, connection)
        own = HttpSink(connection, head, body, self._guard.cors_headers(request))
        sink = self._recorder.watch(record, own) if route is not None and route.metered else own
        visit = Visit(request, route, sink, record, body, connection)
        self._metrics.under_way += 1
        self._lifetime.requests.begin(visit.cancel)
        try:
            with visit.scope:
                if await self._let_in(visit):
                    record.admitted = True
                    if route is None:
                        await self._answer_itself(visit, own, connection, head)
                    elif is_passed(request.path) and not self._settings.single:
                        await self._pipeline.pass_through(visit)
                    else:
                        await self._pipeline.answer(visit)
            if visit.why is not None and visit.scope.cancelled_caught:
                raise visit.why
        except Exception as error:  # noqa: BLE001  it becomes an answer, and a bug a line in the log
            await explain(visit, error)
        finally:
            connection.leaving = None
            self._lifetime.requests.end(visit.cancel)
            body.release()
            if not body.complete:
                connection.owe()
            self._metrics.under_way -= 1
            status = CLIENT_LEFT if visit.left or own.status is None else own.status
            self._metrics.count(route.name if route else OWN, status, own.sent)
            if isinstance(sink, RecordingSink) and route is not None and record.admitted and not record.outlives:
                self._recorder.finish(record, sink, route.name, status)
            self._note(request, status, own.sent, trio.current_time() - began)
        return own.stays and own.ended

    async def answer_inward(self, request: Request, record: Record, content: bytes, handover: Handover) -> None:
        """Have a request of the program itself answered, without a connection; see `http.way.inward`."""
        route = self._route(request)
        record.path = route.name if route is not None else record.path
        sink = self._recorder.watch(record, handover) if route is not None and route.metered else handover
        body = Body(self._bodies, len(content), _Given(content))
        visit = Visit(request, route, sink, record, body)
        self._lifetime.requests.begin(visit.cancel)
        try:
            with visit.scope:
                if route is None:
                    raise RouteNotFound(request.method, request.path)
                await self._pipeline.answer(visit)
            if visit.why is not None and visit.scope.cancelled_caught:
                raise visit.why
        except Exception as error:  # noqa: BLE001  as above
            if isinstance(error, ApplianceError):
                handover.fail(error)
            await explain(visit, error)
        finally:
            self._lifetime.requests.end(visit.cancel)
            body.release()
            if isinstance(sink, RecordingSink) and route is not None:
                status = handover.status if handover.ended and handover.status is not None else CLIENT_LEFT
                self._recorder.finish(record, sink, route.name, status)
            handover.close()

    def _route(self, request: Request) -> Route | None:
        """How a request for a model is treated; None for the program's own routes."""
        if self._settings.single:
            answered_here = (CORS_PROXY, TOOLS, self._predict.path)
            return single_route(request) if request.path not in answered_here else None
        if is_passed(request.path):
            ours = request.path.startswith(UPSTREAM)
            return passed_route(request.method, self._front.targets.rest_of(below(request)) if ours else "")
        return model_route(request)

    def _note(self, request: Request, status: int, sent: int, seconds: float) -> None:
        """The line of the request in the program's log; never what was said in it."""
        self._front.owners.program_log.answered(request, status, sent, seconds)

    async def _let_in(self, visit: Visit) -> bool:
        """False when it has its answer already. Raises what is wrong with the request or its sender."""
        request = visit.request
        if request.method == "OPTIONS":
            await send_whole(visit.sink, 200, ((b"Content-Type", b"text/html"),))
            return False
        self._guard.check_place(request)
        files = self._files
        if (
            files is not None
            and await self._may_be_file(request, visit.route)
            and await files.answer(request, visit.sink)
        ):
            return False
        if not request.public:
            self._guard.check_key(request)
        return True

    async def _may_be_file(self, request: Request, route: Route | None) -> bool:
        """Files in place of the page: they are public, and never hide a route."""
        if request.path in PAGE_PATHS:
            return True
        if request.public or (route is not None and route.name != OTHER):
            return False
        control = self._control or await self._make_control()
        return not control.has_route(request)

    async def _answer_itself(self, visit: Visit, own: HttpSink, connection: Connection, head: Head) -> None:
        """The program's own routes: those with bodies too large for Quart, or whose client's leaving matters, first."""
        request = visit.request
        if request.path == CORS_PROXY:
            await self._cors_proxy.answer(visit)
        elif request.path == TOOLS:
            await self._tools.answer(visit)
        elif request.path == self._predict.path and request.method == "POST":
            await self._predict.answer(visit)
        elif request.path == MCP:
            self._mcp = self._mcp or _mcp_server(self._front)
            await self._mcp.answer(visit)
        elif not request.path:
            raise RouteNotFound(request.method, request.path or "/")
        else:
            control = self._control or await self._make_control()
            await control.answer(visit, own, connection, head)

    async def _make_control(self) -> QuartBehind:
        """Import and build the Quart application, in a thread: it takes a tenth of a second."""

        def make() -> QuartBehind:
            from appliance.http.control.quart_behind import QuartBehind

            return QuartBehind(self._front)

        async with self._making_control:
            if self._control is None:
                self._control = await trio.to_thread.run_sync(make)
        return self._control


class _Given:
    """A body that is there."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read_body(self, body: Body) -> bytes:
        return self._content


def _mcp_server(front: Front) -> McpServer:
    """Imported where it is switched on, or asked for. Raises BadRequest for a tool of the settings that is missing."""
    from appliance.http.mcp.server import McpServer

    return McpServer(front)
