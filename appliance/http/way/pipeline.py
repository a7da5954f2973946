"""The way of a request for a model: body, target, lease, edits, exchange, and the answer's bytes back, unmodified."""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote

import trio
from msgspec import structs

from appliance.agents.chain import Chains
from appliance.core import head as heads
from appliance.core.head import RequestHead
from appliance.core.model import Model
from appliance.errors import (
    BadRequest,
    Conflict,
    ModelLoading,
    ModelNotLoaded,
    RequestCancelled,
    RouteNotFound,
)
from appliance.http.bytes.body import BodyReader, Receive
from appliance.http.bytes.tasks import Inbox
from appliance.http.chat.chained import through_plugins
from appliance.http.chat.chat_tools import ToolChats
from appliance.http.control.listing import state_of
from appliance.http.way.asking import Asking
from appliance.http.way.explaining import explaining
from appliance.http.way.fallback import wish_of
from appliance.http.way.front import Front
from appliance.http.way.job import Job
from appliance.http.way.outgoing import JSON, Format, edited, format_of, head_of, reached, renamed
from appliance.http.way.peer_relay import answer_from_peers
from appliance.http.way.relay import relay
from appliance.http.way.resumable import be_first_reader, conversation_of, interrupted_record
from appliance.http.way.routes import COMFY, COMFY_MODEL, UPSTREAM, Route, below
from appliance.traffic.record import CLIENT_LEFT, Record, RecordingSink
from appliance.traffic.request import Request
from appliance.traffic.sink import Sink, send_whole
from appliance.traffic.targets import Target
from appliance.upstream.client import exchange


class Pipeline:
    """Answers the requests that belong to a model's process or a peer."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.settings
        self._asking = Asking(front)
        self._chains = Chains(front.owners.plugins, front.inward, front.targets.names)
        self._tool_chats = ToolChats(front.owners.tools, front.owners.agents, front.settings.ping_after)

    async def answer(
        self, request: Request, route: Route, reader: BodyReader, client: Inbox, sink: Sink, record: Record
    ) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        body = await _read(request, reader, client.receive)
        record.body = body
        form, head = self._read_head(request, body)
        record.model = name = self._name(head)
        job = Job(
            request=request,
            route=route,
            body=body,
            format=form,
            streams=head.stream and route.streams,
            path=request.target.removeprefix(route.strip),
            sink=sink,
            record=record,
        )
        conversation = conversation_of(request) if route.streams else None
        if conversation is not None:
            await self._answer_lastingly(conversation, name, job, reader, client)
            return
        async with self._front.targets.chosen(name) as target:
            await self._serve(job, target, client)

    async def _answer_lastingly(
        self, conversation: str, name: str, job: Job, reader: BodyReader, client: Inbox
    ) -> None:
        """Under the owner of streams, with this request as the first reader. Raises as `answer`."""
        front, request, record = self._front, job.request, job.record

        async def generate(ring: Sink) -> None:
            sink = front.recorder.watch(record, ring)

            async def work() -> None:
                async with front.targets.chosen(name) as target:
                    await self._serve(structs.replace(job, sink=sink), target, Inbox())  # of a client that never leaves

            try:
                await explaining(work, sink, request)
            finally:
                front.bodies.release(reserved)
                front.recorder.finish(record, sink, job.route.name, ring.status or CLIENT_LEFT)

        def loading() -> bool:
            return front.fleet.known(record.model) is not None and not front.fleet.is_ready(record.model)

        generation = front.streams.begin(
            conversation,
            generate,
            streams=job.streams,
            loading=loading,
            interrupted=interrupted_record(job.route.dialect),
        )
        reserved, record.outlives = reader.hand_over(), True
        first = job.sink.inner if isinstance(job.sink, RecordingSink) else job.sink
        with client.staying():
            await be_first_reader(generation, first)

    async def pass_through(
        self, request: Request, route: Route, reader: BodyReader, client: Inbox, sink: Sink, record: Record
    ) -> None:
        """``/upstream/<model>/<rest>`` and ``/comfyui/<rest>``: as it is, to the model's server. Raises as `answer`."""
        record.model = unquote(below(request).partition("/")[0])
        target, path = await self.passed_target(request)
        body = await _read(request, reader, client.receive)
        if not path.startswith("/"):
            await self._move(request, sink)
            return
        record.body = body
        job = Job(request=request, route=route, body=body, edits=False, path=path, sink=sink, record=record)
        await self._serve(job, target, client)

    async def _move(self, request: Request, sink: Sink) -> None:
        """To the same with a slash behind it: pages there name what belongs to them relative to it."""
        raw, mark, query = request.target.partition("?")
        there = f"{self._settings.api_prefix}{raw}/{mark}{query}"
        status = 301 if request.method in ("GET", "HEAD") else 308
        await send_whole(sink, status, ((b"Location", there.encode("latin-1")),))

    async def passed_target(self, request: Request) -> tuple[Target, str]:
        """Whom a path below ``/upstream/`` or ``/comfyui/`` means, with the path and query for its server.

        The path is empty, or only a query, where the request's ends with the model's name. Raises ModelNotFound, and
        Conflict for what must not start a model that is not ready.
        """
        _, mark, query = request.target.partition("?")
        rest = below(request)
        if request.path.startswith(UPSTREAM):
            target, path = await self._front.targets.upstream(rest)
            starts, why = not self._front.is_ignored(unquote(path)), "upstream.ignorePaths"
        else:
            if self._front.catalog.snapshot.find(COMFY_MODEL) is None:
                raise RouteNotFound(request.method, request.path)
            target, path = await self._front.targets.upstream(COMFY_MODEL + rest)
            starts, why = path in ("", "/"), f"only {COMFY} does"
        if not starts and target.model is not None and not self._front.fleet.is_ready(target.model.id):
            raise Conflict(f"model '{target.label}' is not ready, and {path} does not start it ({why})")
        return target, f"{path}{mark}{query}"

    def _read_head(self, request: Request, body: bytes) -> tuple[Format, RequestHead]:
        """The model's name, from the body or else from the query, and whether a stream is wanted."""
        asked = RequestHead(request.query.get("model") or None)
        if request.method != "POST":
            return JSON, asked
        form = format_of(request, body)
        if form == JSON and (asked.model or self._settings.single) and not heads.is_object(body):
            return JSON, asked  # an array or nothing at all, as /lora-adapters and /slots have it
        found = head_of(form, body)
        return form, found if found.model or not asked.model else RequestHead(asked.model, found.stream)

    def _name(self, head: RequestHead) -> str:
        """Raises BadRequest when the request leaves the choice open."""
        if name := self._settings.single or head.model:
            return name
        snapshot = self._front.catalog.snapshot
        known = list(snapshot.config.models) if snapshot.config is not None else []
        known = known or [model.id for model in snapshot.models]
        if len(known) != 1:
            raise BadRequest(
                'the request names no model; add "model" to it. GET /v1/models lists what there is', param="model"
            )
        return known[0]

    async def _serve(self, job: Job, target: Target, client: Inbox) -> None:
        wish_of(job.request)  # a mistake is told whoever answers
        record = job.record
        record.model, record.known = target.label, True
        if target.selector is not None:
            record.metadata["selector"] = target.selector
        if target.model is not None and not (job.route.loads and self.may_load(target.model, job.request)):
            with client.staying():
                await self._ask(target.model, job)
            return
        with (
            trio.CancelScope() as scope,
            self._front.inflight.begin(
                job.request, target.label, record.metadata, cancel=lambda _: scope.cancel()
            ) as entry,
        ):
            record.entry = entry

            async def ask(job: Job) -> None:
                if target.model is None:
                    await self._ask_peers(job, target)
                else:
                    await self._asking.ask(job, target, target.model)

            name = target.model.id if target.model is not None else target.requested
            ask_with_tools = partial(self._tool_chats.answer, ask)
            with client.staying():
                await through_plugins(self._chains, job, name, self._settings.ping_after, ask_with_tools)
        if scope.cancelled_caught:
            raise RequestCancelled

    def may_load(self, model: Model, request: Request) -> bool:
        """Whether the request may start the model, or finds it running: ``?autoload=`` decides, else the setting."""
        asked = request.query.get("autoload")
        if self._settings.autoload if asked is None else asked in ("true", "1"):
            return True
        return state_of(self._front.fleet.known(model.id)) != "unloaded"

    async def _ask(self, model: Model, job: Job) -> None:
        """Ask a running model; never load one, never count as a use of it."""
        ready = self._front.fleet.lease_nowait(model.id)
        if ready is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self._front.fleet.wait_quiet(model.id)
        request = job.request
        with ready as address:
            address = reached(address, model, request)
            async with exchange(
                address, request.method, job.path, self._asking.headers(job, model), job.body
            ) as response:
                await relay(response, job.sink)

    async def _ask_peers(self, job: Job, target: Target) -> None:
        def body_for(peer_id: str, model: str) -> bytes:
            if not job.edits:
                return job.body
            return edited(job.format, job.body, self._front.targets.peer_edits(peer_id), target.requested, model)

        def answering(peer_id: str) -> None:
            job.record.metadata["peer"] = peer_id

        request, watch = job.request, job.record.watch
        watch.granted(None)
        await answer_from_peers(
            self._front.peers,
            target.peers,
            request.method,
            renamed(job.path, self._front.targets.sent_name(target)) if job.edits else job.path,
            request.headers,
            body_for,
            job.sink,
            job.route.dialect,
            answering=answering,
            progress=watch,
        )


async def _read(request: Request, reader: BodyReader, receive: Receive) -> bytes:
    if request.header(b"content-length") is None and request.header(b"transfer-encoding") is None:
        reader.complete = True
        return b""
    return await reader.read(request, receive)
