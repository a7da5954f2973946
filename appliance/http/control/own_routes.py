"""Dispatch of the program's own routes: Quart answers all but a few.

Those few have larger bodies than Quart is let have, or a client whose leaving has to be seen at once. What is large to
import is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from appliance.core.bodies.http_request import Head
from appliance.core.runs.inward import Asker
from appliance.core.settings import HttpSettings, Listen
from appliance.errors import RouteNotFound
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Bodies
from appliance.http.bytes.connection import Connection
from appliance.http.control.cors_proxy import CorsProxy
from appliance.http.control.predict import Predict
from appliance.http.control.static_files import StaticFiles
from appliance.http.control.tool_routes import ToolRoutes
from appliance.http.ollama.routes import OllamaRoutes
from appliance.http.owners import Owners
from appliance.http.way.guard import Guard
from appliance.http.way.routes import CORS_PROXY, MCP, OTHER, TOOLS, Route
from appliance.http.way.visit import Visit
from appliance.traffic.request import PAGE_PATHS, Request
from appliance.traffic.traffic import Traffic

if TYPE_CHECKING:
    from appliance.http.control.quart_behind import QuartBehind
    from appliance.http.mcp.server import McpServer


class OwnRoutes:
    """Raises UsageError for settings that cannot be followed, BadRequest for a tool in them that is missing."""

    def __init__(
        self,
        settings: HttpSettings,
        bound: Sequence[Listen],
        guard: Guard,
        traffic: Traffic,
        bodies: Bodies,
        owners: Owners,
        inward: Asker,
        ollama: OllamaRoutes,
    ) -> None:
        self._settings = settings
        self._bound = bound
        self._guard = guard
        self._traffic = traffic
        self._bodies = bodies
        self._owners = owners
        self._inward = inward
        self._ollama = ollama
        self._files = StaticFiles(settings.static) if settings.static is not None else None
        self._cors_proxy = CorsProxy(settings)
        self._tools = ToolRoutes(owners.tools, traffic.lifetime)
        self._predict = Predict(settings.predict, inward)
        self._mcp = self._mcp_server() if settings.mcp_server else None
        self._quart: QuartBehind | None = None
        self._making_quart = trio.Lock()

    async def answer(self, visit: Visit, own: HttpSink, connection: Connection, head: Head) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = visit.request
        if request.path == CORS_PROXY:
            await self._cors_proxy.answer(visit)
        elif request.path == TOOLS:
            await self._tools.answer(visit)
        elif request.path == self._predict.path and request.method == "POST":
            await self._predict.answer(visit)
        elif request.path == MCP:
            self._mcp = self._mcp or self._mcp_server()
            await self._mcp.answer(visit)
        elif self._settings.single is None and self._ollama.answers(request):
            await self._ollama.answer(visit)
        elif not request.path:
            raise RouteNotFound(request.method, "/")
        else:
            quart = self._quart or await self._make_quart()
            await quart.answer(visit, own, connection, head)

    async def answer_with_file(self, visit: Visit) -> bool:
        """Files instead of the page are public, and never hide a route. False: there is none."""
        return (
            self._files is not None
            and await self._may_be_file(visit.request, visit.route)
            and await self._files.answer(visit.request, visit.sink)
        )

    async def _may_be_file(self, request: Request, route: Route | None) -> bool:
        if request.path in PAGE_PATHS:
            return True
        if request.public or (route is not None and route.name != OTHER):
            return False
        quart = self._quart or await self._make_quart()
        return not quart.has_route(request)

    async def _make_quart(self) -> QuartBehind:
        """In a thread: it takes a tenth of a second."""

        def make() -> QuartBehind:
            from appliance.http.control.app import create_app
            from appliance.http.control.quart_behind import QuartBehind

            app = create_app(self._settings, self._bound, self._traffic, self._bodies, self._owners)
            return QuartBehind(app, self._guard)

        async with self._making_quart:
            if self._quart is None:
                self._quart = await trio.to_thread.run_sync(make)
        return self._quart

    def _mcp_server(self) -> McpServer:
        from appliance.http.mcp.server import McpServer

        return McpServer(self._settings, self._guard, self._traffic, self._owners, self._inward)
