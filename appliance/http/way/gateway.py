"""The ASGI callable: lets a request in or not, and hands it to the pipeline or to the program's own routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from msgspec import structs

from appliance.errors import BadRequest, RouteNotFound, ShuttingDown
from appliance.http.bytes.body import BodyReader, Receive
from appliance.http.bytes.tasks import Inbox
from appliance.http.control.cors_proxy import CORS_PROXY, CorsProxy
from appliance.http.control.predict import Predict
from appliance.http.control.static_files import StaticFiles
from appliance.http.control.tool_routes import TOOLS, ToolRoutes
from appliance.http.sockets.sockets import Sockets
from appliance.http.way.explaining import explaining
from appliance.http.way.front import Front
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.resumable import STREAM
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
from appliance.traffic.record import CLIENT_LEFT, Record, RecordingSink
from appliance.traffic.request import PAGE_PATHS, Request, read_request
from appliance.traffic.sink import AsgiSink, Sink, send_whole

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent, ASGISendCallable, HTTPScope, Scope
    from quart_trio import QuartTrio

    from appliance.http.mcp.server import McpServer

OWN = "own"
HEALTH = "/health"
FOLLOWED = ("/logs/stream", "/api/events", "/api/runs/", "/models/sse", f"{STREAM}/")
"""Answers without an end: whoever writes them has to notice that the client leaves."""


class Gateway:
    """One server's front door. Made by `server.serve`; keeps no task of its own."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.settings
        self._guard = front.guard
        self._pipeline = Pipeline(front)
        front.inward.attach(front, self._pipeline)
        self._sockets = Sockets(front, self._pipeline)
        self._files = StaticFiles(front.settings.static) if front.settings.static is not None else None
        self._cors_proxy = CorsProxy(front.settings)
        self._mcp = _mcp_server(front) if front.settings.mcp_server else None
        self._tools = ToolRoutes(front.owners.tools, front.lifetime)
        self._predict = Predict(front)
        self._control: QuartTrio | None = None
        self._making_control = trio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: ASGISendCallable) -> None:
        match scope["type"]:
            case "http":
                await self._answer(scope, send)
            case "websocket":
                await self._sockets.answer(scope, receive, send)
            case "lifespan":
                return

    async def _answer(self, scope: HTTPScope, send: ASGISendCallable) -> None:
        began = trio.current_time()
        request = read_request(scope, self._settings.api_prefix)
        if self._settings.health is not None and request.path == self._settings.health:
            request = structs.replace(request, path=HEALTH, target=HEALTH)
        state = scope["state"]
        client: Inbox = state["client"]
        can_chunk = request.http_version == "1.1" and request.method != "HEAD"
        write_wire = state["write"] if can_chunk else None
        own = AsgiSink(send, state["abort"], self._guard.cors_headers(request), write_wire)
        route = self._route(request)
        record = Record(request, route.name if route is not None else request.path)
        metered = route is not None and route.metered
        sink: Sink = self._front.recorder.watch(record, own) if metered else own
        metrics = self._front.metrics
        metrics.under_way += 1
        left = False
        try:
            left = not await self._answer_or_explain(scope, request, route, client, own, sink, record)
        finally:
            metrics.under_way -= 1
            status = CLIENT_LEFT if left or own.status is None else own.status
            metrics.count(route.name if route else OWN, status, own.sent)
            if isinstance(sink, RecordingSink) and route is not None and record.admitted and not record.outlives:
                self._front.recorder.finish(record, sink, route.name, status)
            self._note(request, status, own.sent, trio.current_time() - began)

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

    async def _answer_or_explain(
        self,
        scope: HTTPScope,
        request: Request,
        route: Route | None,
        client: Inbox,
        own: AsgiSink,
        sink: Sink,
        record: Record,
    ) -> bool:
        """Whatever goes wrong becomes an answer here. False: the client left before it had one."""
        with self._front.bodies.reading() as reader:

            async def work() -> None:
                with self._front.lifetime.request() as life:
                    if await self._let_in(request, route, own):
                        record.admitted = True
                        if route is not None:
                            await self._pass_on(request, route, reader, client, sink, record)
                        elif (here := self._answered_here(request)) is not None:
                            await here.answer(request, reader, client, own)
                        else:
                            await self._answer_itself(scope, request, client.receive, own)
                if life.cancelled_caught:
                    raise ShuttingDown

            return await explaining(work, sink, request, reader)

    def _answered_here(self, request: Request) -> CorsProxy | McpServer | Predict | ToolRoutes | None:
        """Who answers without Quart: because of a body larger than its, or of a client whose leaving has to be seen."""
        if request.path == CORS_PROXY:
            return self._cors_proxy
        if request.path == TOOLS:
            return self._tools
        if request.path == self._predict.path and request.method == "POST":
            return self._predict
        if request.path == MCP:
            self._mcp = self._mcp or _mcp_server(self._front)
            return self._mcp
        return None

    async def _let_in(self, request: Request, route: Route | None, sink: AsgiSink) -> bool:
        """False when it has its answer already. Raises what is wrong with the request or its sender."""
        if request.method == "OPTIONS":
            await send_whole(sink, 200, ((b"Content-Type", b"text/html"),))
            return False
        if request.http_version not in ("1.0", "1.1"):
            raise BadRequest(f"HTTP/{request.http_version} is not spoken here; use HTTP/1.1")
        self._guard.check_place(request)
        if (
            self._files is not None
            and await self._may_be_file(request, route)
            and await self._files.answer(request, sink)
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
        return not control.url_map.bind("").test(request.path, request.method)

    async def _pass_on(
        self, request: Request, route: Route, reader: BodyReader, client: Inbox, sink: Sink, record: Record
    ) -> None:
        if is_passed(request.path) and not self._settings.single:
            await self._pipeline.pass_through(request, route, reader, client, sink, record)
        else:
            await self._pipeline.answer(request, route, reader, client, sink, record)

    async def _answer_itself(self, scope: HTTPScope, request: Request, receive: Receive, sink: AsgiSink) -> None:
        scope["state"]["trusted"] = self._guard.knows(request)
        scope["path"] = request.path or "/"
        if not request.path:
            raise RouteNotFound(request.method, scope["path"])
        control = self._control or await self._make_control()
        follows = request.path.startswith(FOLLOWED) or request.path == STREAM
        await control(scope, receive if follows else _without_farewell(receive), sink.pass_on)

    async def _make_control(self) -> QuartTrio:
        """Import and build the Quart application, in a thread: it takes a tenth of a second."""

        def make() -> QuartTrio:
            from appliance.http.control.app import create_app

            return create_app(self._front)

        async with self._making_control:
            if self._control is None:
                self._control = await trio.to_thread.run_sync(make)
        return self._control


def _mcp_server(front: Front) -> McpServer:
    """Imported where it is switched on, or asked for. Raises BadRequest for a tool of the settings that is missing."""
    from appliance.http.mcp.server import McpServer

    return McpServer(front)


def _without_farewell(receive: Receive) -> Receive:
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
