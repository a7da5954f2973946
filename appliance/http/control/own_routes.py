"""Dispatch of the program's own routes. Those that only somebody at work with the program asks are on Quart.

The others are asked first and often, have larger bodies than Quart is let have, or a client whose leaving has to be
seen at once. What is large to import is imported when it is asked for.

Vertex AI's requests are unpacked here: one POST holds many requests, each for a route of its own. Source: llama-server
of llama.cpp b11434 and Google's requirements for custom containers (``AIP_*`` variables).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio
from msgspec import Raw

from appliance.core.bodies.http_request import HttpHead
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.blobs import asks_for_blob
from appliance.core.runs.inward import Asker
from appliance.errors import ApplianceError, BadRequest, RouteNotFound, UsageError
from appliance.http import errors
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.connection import Connection
from appliance.http.control.cors_proxy import CorsProxy
from appliance.http.control.edge_routes import EdgeRoutes
from appliance.http.control.file_routes import FileRoutes
from appliance.http.control.static_files import StaticFiles
from appliance.http.control.tool_routes import ToolRoutes
from appliance.http.kernel import Kernel
from appliance.http.owners import Owners
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.http.way.routes import CORS_PROXY, MCP, OTHER, POSTED, TOOLS, Route
from appliance.traffic.request import PAGE_PATHS, PUBLIC_PATHS, Request, send_whole

if TYPE_CHECKING:
    from quart import Blueprint

    from appliance.http.control.quart_behind import QuartBehind

ON_QUART = ("api", "logs", "models", "unload", "v1")
"""The first parts of the paths that Quart has routes for."""
FORMAT = "@requestFormat"
MAX_INSTANCES = 128
"""At once in one request, as in llama-server."""
MAX_PREDICTION = 16 << 20
_OFF = Raw(b"false")


def alias_of(path: str) -> str:
    """``/v1/chat/completions`` is ``chatCompletions``."""
    first, *rest = path.removeprefix("/v1").strip("/").replace("-", "/").replace("_", "/").split("/")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class Predict:
    """Answers the route. Raises UsageError when its path is another route's."""

    def __init__(self, path: str | None, inward: Asker) -> None:
        self.path = path
        self._inward = inward
        if self.path is not None and (self.path in PUBLIC_PATHS or self.path in POSTED):
            raise UsageError(f"AIP_PREDICT_ROUTE={self.path} is a route of the server already; choose another path")
        # Of two routes with one alias the one with a version is meant.
        self._formats = {alias_of(path): path for path in sorted(POSTED)} | {path: path for path in POSTED}

    async def answer(self, context: RequestContext) -> None:
        """All at once; a failure of one is its prediction. Raises BadRequest for the whole, and ClientLeft."""
        instances = _instances(await context.read_body())
        predictions: list[object] = [None] * len(instances)

        async def predict(number: int, instance: Raw) -> None:
            predictions[number] = await self._predict(instance)

        async with trio.open_nursery() as nursery:
            for number, instance in enumerate(instances):
                nursery.start_soon(predict, number, instance)
        await send_whole(context.sink, 200, (errors.JSON_TYPE,), msgspec.json.encode({"predictions": predictions}))

    async def _predict(self, instance: Raw) -> object:
        try:
            path, body = self._inner(instance)
            async with self._inward.ask(path, body, origin="predict") as reply:
                answer = await reply.read(MAX_PREDICTION)
        except ApplianceError as error:
            return Raw(errors.body(errors.describe(error)))
        try:
            msgspec.json.decode(answer)
        except UNREADABLE:
            return answer.decode(errors="replace") or None
        return Raw(answer)

    def _inner(self, instance: Raw) -> tuple[str, bytes]:
        """The route and the body that one instance stands for; a stream has no place in an answer of many."""
        try:
            members = msgspec.json.decode(instance, type=dict[str, Raw])
        except msgspec.ValidationError:
            raise BadRequest("each instance must be a JSON object") from None
        try:
            form = msgspec.json.decode(members.pop(FORMAT, b"null"), type=str)
        except msgspec.ValidationError:
            raise BadRequest(f"each instance must include a string {FORMAT}", param=FORMAT) from None
        if form not in self._formats:
            raise BadRequest(f"no handler registered for {FORMAT}: {form}; an example is chatCompletions", param=FORMAT)
        if "stream" in members:
            members["stream"] = _OFF
        return self._formats[form], msgspec.json.encode(members)


class _Body(msgspec.Struct):
    instances: list[Raw]


def _instances(body: bytes) -> list[Raw]:
    try:
        instances = msgspec.json.decode(body, type=_Body).instances
    except msgspec.ValidationError:
        raise BadRequest("request body must include an array field named instances", param="instances") from None
    except UNREADABLE as error:
        raise BadRequest(f"the request body is not JSON: {error}") from None
    if len(instances) > MAX_INSTANCES:
        raise BadRequest(f"instances array exceeds maximum size of {MAX_INSTANCES}", param="instances")
    return instances


class McpRoute(Protocol):
    """The program as an MCP server."""

    async def answer(self, context: RequestContext) -> None: ...


class ModellessOllama(Protocol):
    """The routes of Ollama's API that are for no model's process."""

    def answers(self, request: Request) -> bool: ...

    async def answer(self, context: RequestContext) -> None: ...


class OwnRoutes:
    """``mcp`` makes the MCP server, when it is asked for first; ``routes`` make those of features, with Quart.

    Raises UsageError for settings that cannot be followed, BadRequest for a tool in them that is missing."""

    def __init__(
        self,
        edge: Edge,
        owners: Owners,
        inward: Asker,
        ollama: ModellessOllama,
        mcp: Callable[[], McpRoute],
        routes: Sequence[Callable[[Kernel], Blueprint]],
    ) -> None:
        self._settings = settings = edge.settings
        self._guard = edge.guard
        self._traffic = edge.traffic
        self._owners = owners
        self._ollama = ollama
        self._files = StaticFiles(settings.static) if settings.static is not None else None
        self._edge = EdgeRoutes(edge, owners)
        self._cors_proxy = CorsProxy(settings)
        self._tools = ToolRoutes(owners.tools, edge.traffic.lifetime)
        self._files_of_page = FileRoutes(owners.conversations, edge.bodies)
        self._predict = Predict(settings.predict, inward)
        self._make_mcp = mcp
        self._routes = routes
        self._mcp = mcp() if settings.mcp_server else None
        self._quart: QuartBehind | None = None
        self._making_quart = trio.Lock()

    async def answer(self, context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = context.request
        if request.path == CORS_PROXY:
            await self._cors_proxy.answer(context)
        elif request.path == TOOLS:
            await self._tools.answer(context)
        elif request.path == self._predict.path and request.method == "POST":
            await self._predict.answer(context)
        elif request.path == MCP:
            self._mcp = self._mcp or self._make_mcp()
            await self._mcp.answer(context)
        elif asks_for_blob(request.method, request.path) and (owner := self._owners.pool.owner) is not None:
            from appliance.http.control.blob_routes import answer_blob  # with what only a box in a pool needs

            await answer_blob(context, owner.files)
        elif self._settings.single is None and self._ollama.answers(request):
            await self._ollama.answer(context)
        elif self._files_of_page.answers(request):
            await self._files_of_page.answer(context)
        elif self._edge.answers(request):
            await self._edge.answer(context)
        elif not may_be_on_quart(request):
            raise RouteNotFound(request.method, request.path or "/")
        else:
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
        if request.public or (route is not None and route.name != OTHER) or self._edge.answers(request):
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

            kernel = Kernel(owners=self._owners, traffic=self._traffic, settings=self._settings)
            return QuartBehind(create_app(kernel, self._routes), self._guard)

        async with self._making_quart:
            if self._quart is None:
                self._quart = await trio.to_thread.run_sync(make)
        return self._quart


def may_be_on_quart(request: Request) -> bool:
    """Nothing public is: a stranger cannot make the program import it."""
    return not request.public and request.path[1:].partition("/")[0] in ON_QUART
