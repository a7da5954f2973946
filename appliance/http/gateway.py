"""The ASGI callable: lets a request in or not, and hands it to the pipeline or to the program's own routes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

import trio

from appliance.catalog.catalog import Catalog
from appliance.core.settings import HttpSettings
from appliance.core.sse import ErrorInfo, error_record
from appliance.errors import ApplianceError, BadRequest, RouteNotFound, ShuttingDown
from appliance.fleet.owner import Fleet
from appliance.http import errors
from appliance.http.body import BodyReader, ClientLeft, Receive
from appliance.http.guard import Guard
from appliance.http.lifetime import Lifetime
from appliance.http.metrics import Metrics
from appliance.http.pipeline import Pipeline
from appliance.http.request import Request, read_request
from appliance.http.routes import Route, dialect_of, model_route, single_route
from appliance.http.sink import AsgiSink, Sink

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, HTTPScope, Scope

CLIENT_LEFT = 499
"""What metrics call a request whose client did not wait for the answer; nginx's number for it."""
OWN = "own"

log = logging.getLogger(__name__)


class Gateway:
    """One server's front. Made by `server.serve`; keeps no task of its own."""

    def __init__(
        self,
        settings: HttpSettings,
        fleet: Fleet,
        catalog: Catalog,
        lifetime: Lifetime,
        bound: Sequence[tuple[str, int]],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._catalog = catalog
        self._lifetime = lifetime
        self._bound = bound
        self._guard = Guard(settings, bound)
        self._pipeline = Pipeline(settings, fleet, catalog)
        self._metrics = Metrics(self._pipeline.bodies)
        self._control: Callable[..., Awaitable[None]] | None = None
        self._making_control = trio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: ASGISendCallable) -> None:
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "websocket":
                await _refuse_websocket(scope["path"], send)
            case "lifespan":
                return

    async def _answer(self, scope: HTTPScope, receive: Receive, send: ASGISendCallable) -> None:
        request = read_request(scope, self._settings.api_prefix)
        state = scope["state"]
        can_chunk = request.http_version == "1.1" and request.method != "HEAD"
        write_wire = state["write"] if can_chunk else None
        sink = AsgiSink(send, state["abort"], self._guard.cors_headers(request), write_wire)
        route = single_route(request) if self._settings.single else model_route(request)
        self._metrics.under_way += 1
        left = False
        try:
            left = not await self._answer_or_explain(scope, request, route, receive, sink)
        finally:
            self._metrics.under_way -= 1
            status = CLIENT_LEFT if left or sink.status is None else sink.status
            self._metrics.count(route.name if route else OWN, status, sink.sent)

    async def _answer_or_explain(
        self, scope: HTTPScope, request: Request, route: Route | None, receive: Receive, sink: AsgiSink
    ) -> bool:
        """Whatever goes wrong becomes an answer here. False: the client left before it had one."""
        dialect = dialect_of(request.path)
        with self._pipeline.bodies.reading() as reader:
            try:
                with self._lifetime.request() as life:
                    await self._dispatch(scope, request, route, reader, receive, sink)
                if life.cancelled_caught:
                    raise ShuttingDown
            except ClientLeft:
                return False
            except ApplianceError as error:
                headers = errors.headers(error, close=not reader.complete)
                await _explain(sink, request, errors.describe(error, dialect), headers)
            except Exception:
                bug = secrets.token_hex(4)
                log.exception("internal error %s at %s %r; this is a bug", bug, request.method, request.path)
                await _explain(sink, request, errors.describe_bug(bug, dialect), errors.headers(None, close=True))
        return True

    async def _dispatch(
        self,
        scope: HTTPScope,
        request: Request,
        route: Route | None,
        reader: BodyReader,
        receive: Receive,
        sink: AsgiSink,
    ) -> None:
        if request.method == "OPTIONS":
            await sink.start(200, ((b"Content-Type", b"text/html"), (b"Content-Length", b"0")))
            await sink.end()
            return
        if request.http_version not in ("1.0", "1.1"):
            raise BadRequest(f"HTTP/{request.http_version} is not spoken here; use HTTP/1.1")
        self._guard.check_place(request)
        trusted = self._guard.knows(request)
        if not (trusted or request.public):
            self._guard.check_key(request)
        if route is not None:
            await self._pipeline.answer(request, route, reader, receive, sink)
            return
        scope["state"]["trusted"] = trusted
        scope["path"] = request.path or "/"
        if not request.path:
            raise RouteNotFound(request.method, scope["path"])
        control = self._control or await self._make_control()
        follows = request.path.startswith("/logs/stream")
        await control(scope, receive if follows else _without_farewell(receive), sink.pass_on)

    async def _make_control(self) -> Callable[..., Awaitable[None]]:
        """Import and build the Quart application, in a thread: it takes a tenth of a second."""

        def make() -> Callable[..., Awaitable[None]]:
            from appliance.http.app import Control, create_app

            control = Control(self._settings, self._fleet, self._catalog, self._lifetime, self._metrics, self._bound)
            return create_app(control, self._settings)

        async with self._making_control:
            if self._control is None:
                self._control = await trio.to_thread.run_sync(make)
        return self._control


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


async def _explain(sink: Sink, request: Request, info: ErrorInfo, headers: errors.Headers) -> None:
    """Tell an error in the form that the answer's state still allows."""
    dialect = dialect_of(request.path)
    if sink.ended:
        return
    if sink.status is None:
        content = errors.body(info, dialect)
        await sink.start(info.code, [*headers, (b"Content-Length", str(len(content)).encode())])
        await sink.write(content)
        await sink.end()
    elif sink.event_stream:
        await sink.write(error_record(dialect, info))
        await sink.end()
    else:
        sink.abort()


async def _refuse_websocket(path: str, send: ASGISendCallable) -> None:
    info = errors.describe(RouteNotFound("WEBSOCKET", path))
    head = {"type": "websocket.http.response.start", "status": info.code, "headers": [errors.JSON_TYPE]}
    body = {"type": "websocket.http.response.body", "body": errors.body(info), "more_body": False}
    for event in (head, body):
        await send(cast("ASGISendEvent", event))  # a TypedDict needs its literal in one piece
