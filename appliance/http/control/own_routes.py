"""Dispatch of the program's own routes. Those that only somebody at work with the program asks are on Quart.

The others are asked first and often, have larger bodies than Quart is let have, or a client whose leaving has to be
seen at once. What is large to import is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from appliance.core.bodies.http_request import HttpHead
from appliance.errors import RouteNotFound
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.connection import Connection
from appliance.http.kernel import EdgeRoute, FilesInPlace, Kernel
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import OTHER, Route
from appliance.traffic.request import PAGE_PATHS, Request

if TYPE_CHECKING:
    from appliance.http.control.quart_behind import QuartBehind
    from appliance.http.control.routes import Routes

ON_QUART = ("api", "logs", "models", "openapi.json", "unload", "v1")
"""The first parts of the paths that Quart has routes for."""


class OwnRoutes:
    """The first of ``edges`` that answers a request does; ``routes`` make those of features, with Quart.

    ``files`` stand in the place of the page, if there are any.
    """

    def __init__(
        self,
        kernel: Kernel,
        edges: Sequence[EdgeRoute],
        routes: Sequence[Callable[[Kernel], Routes]],
        files: FilesInPlace | None = None,
    ) -> None:
        self._kernel = kernel
        self._edges = edges
        self._routes = routes
        self._files = files
        self._quart: QuartBehind | None = None
        self._making_quart = trio.Lock()

    async def answer(self, context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = context.request
        for edge in self._edges:
            if edge.answers(request):
                await edge.answer(context)
                return
        if not may_be_on_quart(request):
            raise RouteNotFound(request.method, request.path or "/")
        quart = self._quart or await self._make_quart()
        await quart.answer(context, own, connection, head)

    async def answer_with_file(self, context: RequestContext) -> bool:
        """Files instead of the page are public, and never hide a route. False: there is none."""
        return (
            self._files is not None
            and await self._may_be_file(context.request, context.route)
            and await self._files.answer(context.request, context.sink)
        )

    async def _may_be_file(self, request: Request, route: Route | None) -> bool:
        if request.path in PAGE_PATHS:
            return True
        if (
            request.public
            or (route is not None and route.name != OTHER)
            or any(edge.answers(request) for edge in self._edges)
        ):
            return False
        if not may_be_on_quart(request):
            return True
        quart = self._quart or await self._make_quart()
        return not quart.has_route(request)

    async def _make_quart(self) -> QuartBehind:
        """In a thread: it takes a third of a second."""

        def make() -> QuartBehind:
            from appliance.http.control.app import create_app
            from appliance.http.control.quart_behind import QuartBehind

            edge = self._kernel.edge
            return QuartBehind(*create_app(self._kernel, self._routes), edge.guard, admin=edge.settings.admin)

        async with self._making_quart:
            if self._quart is None:
                self._quart = await trio.to_thread.run_sync(make)
        return self._quart


def may_be_on_quart(request: Request) -> bool:
    """Nothing public is: a stranger cannot make the program import it."""
    return not request.public and request.path[1:].partition("/")[0] in ON_QUART
