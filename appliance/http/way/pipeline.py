"""The way of a request for a model: body, target, lease, edits, exchange, and the answer's bytes back, unmodified."""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote

from msgspec import Struct, structs

from appliance.core import head as heads
from appliance.core.head import RequestHead
from appliance.core.model import Model
from appliance.core.slash import Plan
from appliance.errors import BadRequest, Conflict, ModelLoading, ModelNotLoaded, RouteNotFound
from appliance.http.bytes.body import Bodies
from appliance.http.chat.chained import PluginChains
from appliance.http.chat.chat_tools import ToolChats
from appliance.http.chat.tool_chat import ToolChat
from appliance.http.control.listing import state_of
from appliance.http.way.asking import Asking
from appliance.http.way.explaining import explain
from appliance.http.way.fallback import wish_of
from appliance.http.way.front import Front
from appliance.http.way.job import Job
from appliance.http.way.outgoing import JSON, Format, edited, format_of, head_of, reached, renamed, sent_headers
from appliance.http.way.peer_relay import answer_from_peers
from appliance.http.way.relay import relay
from appliance.http.way.resumable import be_first_reader, conversation_of, interrupted_record
from appliance.http.way.routes import COMFY, COMFY_MODEL, UPSTREAM, below
from appliance.http.way.visit import Visit
from appliance.traffic.record import CLIENT_LEFT, RecordingSink
from appliance.traffic.request import Request
from appliance.traffic.sink import Sink, send_whole
from appliance.traffic.targets import Target
from appliance.upstream.client import exchange


class Question(Struct, frozen=True):
    """About a model as it runs now; it loads none, and counts as no use of it."""

    model: Model


class Plain(Struct, frozen=True):
    """Asked of the model's process."""

    model: Model


class AtPeers(Struct, frozen=True):
    """Asked of the peers that have the model."""


class WithTools(Struct, frozen=True):
    """A chat whose tools are used here, between turns of the model."""

    chat: ToolChat


class WithPlugins(Struct, frozen=True):
    """A request that names plugins."""

    plan: Plan


class Lasting(Struct, frozen=True):
    """A generation that outlives the request, kept under an id."""

    conversation: str


Way = Question | Plain | AtPeers | WithTools | WithPlugins


class Pipeline:
    """Answers the requests that belong to a model's process or a peer.

    A request is read once, its way is decided once, from values, and one function takes it there.
    """

    def __init__(self, front: Front, bodies: Bodies) -> None:
        self._front = front
        self._bodies = bodies
        self._settings = front.settings
        self._targets = front.targets
        self._inflight = front.inflight
        owners = front.owners
        self._asking = Asking(
            front.settings, front.fleet, front.targets, front.guard, front.pings, owners.pool, owners.configuration
        )
        self._plugins = PluginChains(owners.plugins, front.inward, front.targets.names, front.pings)
        self._tools = ToolChats(owners.tools, owners.agents, front.settings.ping_after)

    async def answer(self, visit: Visit) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        job = await self.read(visit)
        conversation = conversation_of(job.request) if job.route.streams else None
        if conversation is None:
            await self.serve(visit, job)
        else:
            await self._serve_lastingly(conversation, visit, job)

    async def read(self, visit: Visit) -> Job:
        """The request with its body, and what the body says of it. Raises BadRequest, and as `Visit.read_body`."""
        request, record, route = visit.request, visit.record, visit.route
        assert route is not None
        record.body = body = await visit.read_body()
        form, head = self._read_head(request, body)
        record.model = name = self._name(head)
        return Job(
            request=request,
            route=route,
            name=name,
            body=body,
            format=form,
            streams=head.stream and route.streams,
            path=request.target.removeprefix(route.strip),
            sink=visit.sink,
            record=record,
        )

    async def serve(self, visit: Visit, job: Job) -> None:
        """Take the request to its target, and the answer to ``job.sink``. Raises as `answer`."""
        async with self._targets.chosen(job.name) as target:
            await self._take(visit, job, target)

    async def _take(self, visit: Visit, job: Job, target: Target) -> None:
        wish_of(job.request)  # a mistake is told whoever answers
        record = job.record
        record.model, record.known = target.label, True
        if target.selector is not None:
            record.metadata["selector"] = target.selector
        job, way = self._decide(job, target)
        if isinstance(way, Question):
            await self._ask_running(way.model, job)
            return
        with self._inflight.begin(job.request, target.label, record.metadata, cancel=visit.cancel) as record.entry:
            match way:
                case Plain(model=model):
                    await self._asking.ask(job, target, model)
                case AtPeers():
                    await self._ask_peers(job, target)
                case WithTools(chat=chat):
                    await self._tools.run(chat, job, partial(self._ask, target))
                case WithPlugins(plan=plan):
                    name = target.model.id if target.model is not None else target.requested
                    await self._plugins.run(plan, job, name, partial(self._ask_with_tools, target))

    def _decide(self, job: Job, target: Target) -> tuple[Job, Way]:
        """Which way a request takes, and the request without what only decided that. Raises BadRequest, Forbidden."""
        model = target.model
        if model is not None and not (job.route.loads and self.may_load(model, job.request)):
            return job, Question(model)
        if job.edits and job.format == JSON and job.request.method == "POST":
            if (plan := self._plugins.plan(job)) is not None:
                if plan.commands:
                    return job, WithPlugins(plan)
                job = structs.replace(job, body=plan.body)
            job, chat = self._tools.read(job)
            if chat is not None:
                return job, WithTools(chat)
        return job, AtPeers() if model is None else Plain(model)

    async def _ask(self, target: Target, job: Job) -> None:
        if target.model is None:
            await self._ask_peers(job, target)
        else:
            await self._asking.ask(job, target, target.model)

    async def _ask_with_tools(self, target: Target, job: Job) -> None:
        """What plugins make of a request may still use tools of this server."""
        job, chat = self._tools.read(job)
        if chat is None:
            await self._ask(target, job)
        else:
            await self._tools.run(chat, job, partial(self._ask, target))

    async def _serve_lastingly(self, conversation: str, visit: Visit, job: Job) -> None:
        """Under the owner of streams, with this request as the first reader. Raises as `answer`."""
        front, request, record = self._front, job.request, job.record

        async def generate(ring: Sink) -> None:
            sink = front.recorder.watch(record, ring)
            inner = Visit(request, job.route, sink, record, visit.body)
            front.lifetime.requests.begin(inner.cancel)
            try:
                with inner.scope:
                    await self.serve(inner, structs.replace(job, sink=sink))
                if inner.scope.cancelled_caught and inner.why is not None:
                    raise inner.why
            except Exception as error:  # noqa: BLE001  it becomes an answer
                await explain(inner, error)
            finally:
                front.lifetime.requests.end(inner.cancel)
                self._bodies.release(reserved)
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
        reserved, record.outlives = visit.body.hand_over(), True
        await be_first_reader(generation, job.sink.inner if isinstance(job.sink, RecordingSink) else job.sink)

    async def pass_through(self, visit: Visit) -> None:
        """``/upstream/<model>/<rest>`` and ``/comfyui/<rest>``: as it is, to the model's server. Raises as `answer`."""
        request, record, route = visit.request, visit.record, visit.route
        assert route is not None
        record.model = unquote(below(request).partition("/")[0])
        target, path = await self.passed_target(request)
        body = await visit.read_body()
        if not path.startswith("/"):
            await self._move(request, visit.sink)
            return
        record.body = body
        job = Job(
            request=request,
            route=route,
            name=target.requested,
            body=body,
            edits=False,
            path=path,
            sink=visit.sink,
            record=record,
        )
        await self._take(visit, job, target)

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
            target, path = await self._targets.upstream(rest)
            starts, why = not self._front.is_ignored(unquote(path)), "upstream.ignorePaths"
        else:
            if self._front.catalog.snapshot.find(COMFY_MODEL) is None:
                raise RouteNotFound(request.method, request.path)
            target, path = await self._targets.upstream(COMFY_MODEL + rest)
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

    def may_load(self, model: Model, request: Request) -> bool:
        """Whether the request may start the model, or finds it running: ``?autoload=`` decides, else the setting."""
        asked = request.query.get("autoload")
        if self._settings.autoload if asked is None else asked in ("true", "1"):
            return True
        return state_of(self._front.fleet.known(model.id)) != "unloaded"

    async def _ask_running(self, model: Model, job: Job) -> None:
        ready = self._front.fleet.lease_nowait(model.id)
        if ready is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self._front.fleet.wait_quiet(model.id)
        request = job.request
        headers = sent_headers(request, model, keys_are_ours=self._front.guard.asks_for_key)
        with ready as address:
            async with exchange(
                reached(address, model, request),
                request.method,
                job.path,
                headers,
                job.body,
                pool=self._front.owners.pool,
            ) as response:
                await relay(response, job.sink)

    async def _ask_peers(self, job: Job, target: Target) -> None:
        def body_for(peer_id: str, model: str) -> bytes:
            if not job.edits:
                return job.body
            return edited(job.format, job.body, self._targets.peer_edits(peer_id), target.requested, model)

        def answering(peer_id: str) -> None:
            job.record.metadata["peer"] = peer_id

        request, watch = job.request, job.record.watch
        watch.granted(None)
        await answer_from_peers(
            self._front.peers,
            target.peers,
            request.method,
            renamed(job.path, self._targets.sent_name(target)) if job.edits else job.path,
            request.headers,
            body_for,
            job.sink,
            job.route.dialect,
            answering=answering,
            progress=watch,
            pool=self._front.owners.pool,
        )
