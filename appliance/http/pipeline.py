"""The way of an inference request: body, model, lease, engine, and its bytes back, unmodified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from appliance.catalog.catalog import Catalog
from appliance.core import head as heads
from appliance.core.head import RequestHead
from appliance.core.model import Model
from appliance.core.settings import HttpSettings
from appliance.errors import (
    ApplianceError,
    BadRequest,
    ModelLoading,
    ModelNotLoaded,
    UpstreamFailed,
)
from appliance.fleet.owner import Fleet
from appliance.http.body import Bodies, BodyReader, ClientLeft, Receive
from appliance.http.choice import find_model
from appliance.http.relay import Pinger, relay
from appliance.http.request import Request
from appliance.http.routes import Route
from appliance.http.sink import Sink
from appliance.upstream.client import Headers, exchange, forwardable

END_NOTICED = 0.25
"""Seconds that the fleet is given to notice why a connection broke; a child's exit is seen within milliseconds."""


class Pipeline:
    """Answers the requests that belong to a model's process."""

    def __init__(self, settings: HttpSettings, fleet: Fleet, catalog: Catalog) -> None:
        self.bodies = Bodies(settings)
        self._settings = settings
        self._fleet = fleet
        self._catalog = catalog

    async def answer(self, request: Request, route: Route, reader: BodyReader, receive: Receive, sink: Sink) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        body = b""
        if _has_body(request):
            body = await reader.read(request, receive)
        else:
            reader.complete = True
        head = self._read_head(request, body)
        model = await self._choose(head)
        if not route.loads:
            await self._ask(model, request, body, receive, sink)
            return
        wants_pings = head.stream and route.streams and self._settings.ping_after > 0
        pinger = Pinger(sink, self._settings.ping_after) if wants_pings else None
        work = _Exchange(self._fleet, request, route, body, sink, pinger)
        await _while_client_stays(receive, partial(work.run, model))

    def _read_head(self, request: Request, body: bytes) -> RequestHead:
        """The model's name, from the body or else from the query, and whether a stream is wanted."""
        asked = RequestHead(request.query.get("model") or None)
        if request.method != "POST":
            return asked
        boundary = heads.multipart_boundary(request.header(b"content-type"))
        if boundary is not None:
            found = heads.read_multipart(body, boundary)
        elif (asked.model or self._settings.single) and not heads.is_object(body):
            return asked  # an array or nothing at all, as /lora-adapters and /slots have it
        else:
            found = heads.read_json(body)
        return RequestHead(found.model or asked.model, found.stream)

    async def _choose(self, head: RequestHead) -> Model:
        """Raises ModelNotFound, InvalidModelFile, or BadRequest when the request leaves the choice open."""
        snapshot = self._catalog.snapshot
        name = self._settings.single or head.model
        if name is None:
            if len(snapshot.models) != 1:
                raise BadRequest(
                    'the request names no model; add "model" to it. GET /v1/models lists what there is', param="model"
                )
            name = snapshot.models[0].id
        return await find_model(self._catalog, name)

    async def _ask(self, model: Model, request: Request, body: bytes, receive: Receive, sink: Sink) -> None:
        """Ask a running model; never load one, never count as a use of it."""
        ready = self._fleet.lease_nowait(model.id)
        if ready is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)

        async def ask() -> None:
            await self._fleet.wait_quiet(model.id)
            with ready as address:
                async with exchange(address, *_forwarded(request), body) as response:
                    await relay(response, sink)

        await _while_client_stays(receive, ask)


class _Exchange:
    """One request on its way through queue, load and engine."""

    def __init__(
        self, fleet: Fleet, request: Request, route: Route, body: bytes, sink: Sink, pinger: Pinger | None
    ) -> None:
        self._fleet = fleet
        self._request = request
        self._route = route
        self._body = body
        self._sink = sink
        self._pinger = pinger

    async def run(self, model: Model) -> None:
        if self._pinger is None:
            await self._run(model)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pinger.run)
            failure = await _outcome(partial(self._run, model))
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run(self, model: Model) -> None:
        request = self._request
        async with self._fleet.lease(model) as address:
            try:
                async with exchange(address, *_forwarded(request), self._body) as response:
                    if self._pinger is not None:
                        self._pinger.stop()
                    await relay(response, self._sink, self._route.dialect)
            except UpstreamFailed as error:
                raise await self._explain(model, error) from None

    async def _explain(self, model: Model, error: UpstreamFailed) -> UpstreamFailed:
        """Say how the process ended, if it has."""
        with trio.move_on_after(END_NOTICED):
            while (status := self._fleet.known(model.id)) and status.pid is not None:
                await self._fleet.wait_changed()
            if status is not None and status.error is not None:
                return UpstreamFailed(model.id, f"{error.why}; {status.error}")
        return error


async def _while_client_stays(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work``; as soon as the client leaves, cancel it and raise ClientLeft. Its ApplianceError passes through."""
    finished = False

    async def watch() -> None:
        while (await receive())["type"] == "http.request":
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        failure = await _outcome(work)
        finished = True  # after the end of an answer, receive() too says that the client has left
        nursery.cancel_scope.cancel()
    if not finished:
        raise ClientLeft
    if failure is not None:
        raise failure


async def _outcome(work: Callable[[], Awaitable[None]]) -> ApplianceError | None:
    """An expected failure as a value, so that it can leave a nursery without becoming a group."""
    try:
        await work()
    except ApplianceError as error:
        return error
    return None


def _forwarded(request: Request) -> tuple[str, str, Headers]:
    return request.method, request.target, forwardable(request.headers)


def _has_body(request: Request) -> bool:
    return request.header(b"content-length") is not None or request.header(b"transfer-encoding") is not None
