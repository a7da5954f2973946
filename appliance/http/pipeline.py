"""The way of a request for a model: body, target, lease, edits, exchange, and the answer's bytes back, unmodified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core import head as heads
from appliance.core.head import RequestHead
from appliance.core.model import Model
from appliance.errors import (
    BadRequest,
    Conflict,
    ModelLoading,
    ModelNotLoaded,
    RouteNotFound,
    UpstreamFailed,
)
from appliance.fleet.place import Place
from appliance.http.body import BodyReader, ClientLeft, Receive
from appliance.http.front import Front
from appliance.http.loading import LoadingStream
from appliance.http.outgoing import FORM, edited, reached, sent_headers
from appliance.http.peer_relay import answer_from_peers
from appliance.http.record import Record
from appliance.http.relay import Pinger, relay
from appliance.http.request import Request
from appliance.http.routes import COMFY, COMFY_MODEL, UPSTREAM, Route
from appliance.http.sink import Sink
from appliance.http.targets import Target
from appliance.http.telling import Telling, outcome, telling_while
from appliance.upstream.client import exchange

END_NOTICED = 0.25
"""Seconds that the fleet is given to notice why a connection broke; a child's exit is seen within milliseconds."""


class Job(Struct, frozen=True, kw_only=True):
    """One request on its way. ``path`` is the path and query that its server gets."""

    request: Request
    route: Route
    body: bytes
    streams: bool
    path: str
    sink: Sink
    record: Record


class Pipeline:
    """Answers the requests that belong to a model's process or a peer."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.settings

    async def answer(
        self, request: Request, route: Route, reader: BodyReader, receive: Receive, sink: Sink, record: Record
    ) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        body = await _read(request, reader, receive)
        head = self._read_head(request, body)
        record.body = body
        record.model = name = self._name(head)
        async with self._front.targets.chosen(name) as target:
            job = Job(
                request=request,
                route=route,
                body=body,
                streams=head.stream and route.streams,
                path=request.target.removeprefix(route.strip),
                sink=sink,
                record=record,
            )
            await self._serve(job, target, receive)

    async def pass_through(
        self, request: Request, route: Route, reader: BodyReader, receive: Receive, sink: Sink, record: Record
    ) -> None:
        """``/upstream/<model>/<rest>`` and ``/comfyui/<rest>``: as it is, to the model's server. Raises as `answer`."""
        target, path = await self.passed_target(request)
        body = await _read(request, reader, receive)
        record.body = body
        record.model = target.label
        job = Job(request=request, route=route, body=body, streams=False, path=path, sink=sink, record=record)
        await self._serve(job, target, receive, edits=False)

    async def passed_target(self, request: Request) -> tuple[Target, str]:
        """Whom a path below ``/upstream/`` or ``/comfyui/`` means, with the path and query for its server.

        Raises ModelNotFound, and Conflict for what must not start a model that is not ready.
        """
        raw, mark, query = request.target.partition("?")
        if request.path.startswith(COMFY):
            if self._front.catalog.snapshot.find(COMFY_MODEL) is None:
                raise RouteNotFound(request.method, request.path)
            target, path = await self._front.targets.upstream(f"{COMFY_MODEL}/{raw.removeprefix(COMFY)}")
            starts = path == "/"
        else:
            target, path = await self._front.targets.upstream(raw.removeprefix(UPSTREAM))
            starts = not self._front.is_ignored(path)
        if not starts and target.model is not None and not self._front.fleet.is_ready(target.model.id):
            raise Conflict(f"model '{target.label}' is not ready, and {path} does not start it (upstream.ignorePaths)")
        return target, f"{path or '/'}{mark}{query}"

    def _read_head(self, request: Request, body: bytes) -> RequestHead:
        """The model's name, from the body or else from the query, and whether a stream is wanted."""
        asked = RequestHead(request.query.get("model") or None)
        if request.method != "POST":
            return asked
        content_type = request.header(b"content-type") or ""
        boundary = heads.multipart_boundary(content_type)
        if boundary is not None:
            found = heads.read_multipart(body, boundary)
        elif content_type.lower().startswith(FORM) and not heads.is_object(body):
            found = heads.read_form(body)
        elif (asked.model or self._settings.single) and not heads.is_object(body):
            return asked  # an array or nothing at all, as /lora-adapters and /slots have it
        else:
            found = heads.read_json(body)
        return RequestHead(found.model or asked.model, found.stream)

    def _name(self, head: RequestHead) -> str:
        """Raises BadRequest when the request leaves the choice open."""
        models = self._front.catalog.snapshot.models
        name = self._settings.single or head.model
        if name is None:
            if len(models) != 1:
                raise BadRequest(
                    'the request names no model; add "model" to it. GET /v1/models lists what there is', param="model"
                )
            name = models[0].id
        return name

    async def _serve(self, job: Job, target: Target, receive: Receive, *, edits: bool = True) -> None:
        record = job.record
        record.model, record.known = target.label, True
        if target.selector is not None:
            record.metadata["selector"] = target.selector
        if not job.route.loads and target.model is not None:
            await _while_client_stays(receive, partial(self._ask, target.model, job))
            return
        with self._front.inflight.begin(job.request, target.label, job.request.client, record.metadata) as entry:
            record.entry = entry
            if target.model is None:
                work = partial(self._ask_peers, job, target, edits=edits)
            else:
                work = partial(self._ask_model, job, target, target.model, edits=edits)
            await _while_client_stays(receive, work)

    async def _ask(self, model: Model, job: Job) -> None:
        """Ask a running model; never load one, never count as a use of it."""
        ready = self._front.fleet.lease_nowait(model.id)
        if ready is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self._front.fleet.wait_quiet(model.id)
        request = job.request
        with ready as address:
            address = reached(address, model, request)
            async with exchange(address, request.method, job.path, self._headers(job, model), job.body) as response:
                await relay(response, job.sink)

    async def _ask_model(self, job: Job, target: Target, model: Model, *, edits: bool) -> None:
        body = job.body
        if edits:
            named = target.requested if target.renamed else None
            body = edited(job.request, body, self._front.targets.edits(model), target.requested, named)
        place = Place()
        teller = self._teller(job, model, place)
        headers = self._headers(job, model)

        async def use(telling: Telling | None) -> None:
            async with self._front.fleet.lease(model, place) as address:
                if telling is not None:
                    telling.teller.ready()
                there = reached(address, model, job.request)
                try:
                    async with exchange(there, job.request.method, job.path, headers, body) as response:
                        if telling is not None:
                            await telling.stop()
                        await relay(response, job.sink, job.route.dialect)
                except UpstreamFailed as error:
                    raise await self._explain(model, error) from None

        await telling_while(teller, use)

    async def _ask_peers(self, job: Job, target: Target, *, edits: bool) -> None:
        def body_for(peer_id: str, model: str) -> bytes:
            if not edits:
                return job.body
            return edited(job.request, job.body, self._front.targets.peer_edits(peer_id), target.requested, model)

        def answering(peer_id: str) -> None:
            job.record.metadata["peer"] = peer_id

        request = job.request
        await answer_from_peers(
            self._front.peers,
            target.peers,
            request.method,
            job.path,
            request.headers,
            body_for,
            job.sink,
            job.route.dialect,
            answering=answering,
        )

    def _headers(self, job: Job, model: Model) -> list[tuple[bytes, bytes]]:
        return sent_headers(job.request, model, keys_are_ours=self._front.guard.asks_for_key)

    def _teller(self, job: Job, model: Model, place: Place) -> LoadingStream | Pinger | None:
        """Who tells a waiting client that something is under way."""
        if not job.streams:
            return None
        own, after = model.config, self._settings.ping_after
        if own is None or own.send_loading_state is not True or not job.route.loading_state:
            return Pinger(job.sink, after) if after > 0 else None
        if self._front.fleet.is_ready(model.id):
            return Pinger(job.sink, after) if after > 0 else None
        config = self._front.owners.config
        jokes = config is not None and config.loading_jokes
        return LoadingStream(
            job.sink, model.id, place.position, lambda: _progress(place.progress()), jokes=jokes, ping_after=after
        )

    async def _explain(self, model: Model, error: UpstreamFailed) -> UpstreamFailed:
        """Say how the process ended, if it has."""
        fleet = self._front.fleet
        with trio.move_on_after(END_NOTICED):
            while (status := fleet.known(model.id)) and status.pid is not None:
                await fleet.wait_changed()
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
        failure = await outcome(work)
        finished = True  # after the end of an answer, receive() too says that the client has left
        nursery.cancel_scope.cancel()
    if not finished:
        raise ClientLeft
    if failure is not None:
        raise failure


async def _read(request: Request, reader: BodyReader, receive: Receive) -> bytes:
    if request.header(b"content-length") is None and request.header(b"transfer-encoding") is None:
        reader.complete = True
        return b""
    return await reader.read(request, receive)


class _Progress(Struct):
    """What llama-server says while it loads (its README): ``value`` is the part of the current stage."""

    value: float | None = None


def _progress(raw: Raw | None) -> float | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=_Progress).value
    except msgspec.MsgspecError:
        return None
