"""Websockets of clients: let in as any request is, and served by the first route that is for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from appliance.core.bodies.http_request import HttpHead
from appliance.errors import RouteNotFound
from appliance.http.bytes.connection import Connection
from appliance.http.sockets.handshake import Handshake, answer_handshake, websocket_context
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.traffic.request import Request


class SocketRoute(Protocol):
    """Serves websockets of clients."""

    def answers(self, request: Request, /) -> bool:
        """Return whether the websocket is for it. The key and the sender are checked already."""
        ...

    async def serve(self, context: RequestContext, handshake: Handshake, /) -> None:
        """Accept the websocket, or refuse it, and return when it has ended. Raises ApplianceError and ClientLeft."""
        ...


class WebSockets:
    """Answers websocket handshakes."""

    def __init__(self, edge: Edge, routes: Sequence[SocketRoute]) -> None:
        self._edge = edge
        self._routes = routes

    async def answer(self, request: Request, connection: Connection, head: HttpHead) -> None:
        """The same checks as for any request come first; a refusal is the answer to the handshake."""
        context = websocket_context(request, connection, head, self._edge.bodies)
        requests = self._edge.traffic.lifetime.requests
        requests.begin(context.cancel, request)
        try:
            await answer_handshake(context, connection, head, partial(self._serve, context, connection))
        finally:
            requests.end(context.cancel)

    async def _serve(self, context: RequestContext, connection: Connection, handshake: Handshake) -> None:
        request = context.request
        self._edge.guard.check_place(request)
        self._edge.guard.check_key(request)
        connection.stranger = False
        route = next((route for route in self._routes if route.answers(request)), None)
        if route is None:
            raise RouteNotFound("WEBSOCKET", request.path)
        await route.serve(context, handshake)
