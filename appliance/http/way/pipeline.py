"""The way of a request for a model: body, target, lease, edits, exchange, and the answer's bytes back, unmodified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import unquote

from msgspec import Struct, structs

from appliance.catalog.catalog import Catalog
from appliance.core.bodies import head as heads
from appliance.core.bodies.head import RequestHead
from appliance.core.bodies.sse import Dialect
from appliance.core.config.scalars import is_found
from appliance.core.models.model import Model
from appliance.core.ollama.asking import OllamaRefusal, keep_alive_in
from appliance.core.records.activity import CLIENT_LEFT
from appliance.errors import (
    ApplianceError,
    BadRequest,
    Conflict,
    DownloadNeeded,
    Forbidden,
    ModelNotFound,
    RouteNotFound,
)
from appliance.fleet.status import state_of
from appliance.http.bytes.body import Body
from appliance.http.way.ask import Ask, wish_of
from appliance.http.way.at_peers import AskPeers
from appliance.http.way.context import ModelRequest, RequestContext, Use
from appliance.http.way.edge import Edge
from appliance.http.way.explaining import explain
from appliance.http.way.handover import Handover, Inward
from appliance.http.way.hooks import Hold, Turn
from appliance.http.way.ollama_sink import speak
from appliance.http.way.outgoing import IDENTITY, JSON, Format, format_of, head_of
from appliance.http.way.routes import (
    COMFY,
    COMFY_MODEL,
    CORS_PROXY,
    NAMELESS,
    TOOLS,
    UPSTREAM,
    Route,
    below,
    is_passed,
    model_route,
    passed_route,
    single_route,
)
from appliance.traffic.record import Record, RecordingSink
from appliance.traffic.request import Request, Sink, send_whole
from appliance.traffic.targets import Target

KEEP_ALIVE = b"x-keep-alive"
"""How long the model is to stay, in the words of Ollama's ``keep_alive``."""
DOWNLOAD = b"x-appliance-download"
"""``allow`` agrees to the download of the model that a request names, where the configuration asks."""
MEANWHILE = b"x-appliance-meanwhile"
"""``none``: nothing may stand in for a selector's first target."""


class OllamaReading(Protocol):
    """Reads requests of Ollama's API."""

    async def read(self, context: RequestContext) -> ModelRequest | None:
        """None: it has its answer already."""
        ...


class Placing(Protocol):
    """Asks the boxes of the pool."""

    async def ask(self, job: ModelRequest, target: Target, *, wanted: Model | None = None) -> None: ...


class Beside(Struct, frozen=True, kw_only=True):
    """The ways beside the plain one. The composition hands them in, so that this room imports none of theirs.

    The door of a pool has none of them but ``admits``: what comes through it is answered here or refused.
    """

    peers: AskPeers
    turns: Sequence[Turn] = ()
    """Asked in this order, each with what the one before it has left."""
    ollama: OllamaReading | None = None
    inward: Inward | None = None
    """The program's way to ask itself; answered by the pipeline."""
    pool: Callable[[], Placing] | None = None
    """Called once, for the first request whose model another box has as well."""
    admits: Callable[[Target], None] | None = None
    """Raises NotPlaced for a request that another box has to answer."""


class Pipeline:
    """Answers the requests that belong to a model's process or a peer.

    A request is read once, its way is decided once, from values, and one function takes it there.
    """

    def __init__(self, edge: Edge, catalog: Catalog, ask: Ask, hold: Hold | None, beside: Beside) -> None:
        self._settings = edge.settings
        self._guard = edge.guard
        self._traffic = edge.traffic
        self._targets = edge.traffic.targets
        self._inflight = edge.traffic.inflight
        self._bodies = edge.bodies
        self._catalog = catalog
        self._fleet = ask.fleet
        self._models = ask
        self._peers = beside.peers
        self._hold = hold
        self._turns, self._ollama = beside.turns, beside.ollama
        self._make_placing, self._placing = beside.pool, None
        self._admits = beside.admits
        if beside.inward is not None:
            beside.inward.answer = self._answer_inward

    def route(self, request: Request) -> Route | None:
        """Return the route of a request for a model; None for the program's own routes."""
        if self._settings.single:
            answered_here = (CORS_PROXY, TOOLS, self._settings.predict)
            return single_route(request) if request.path not in answered_here else None
        if is_passed(request.path):
            ours = request.path.startswith(UPSTREAM)
            return passed_route(request.method, self._targets.rest_of(below(request)) if ours else "")
        return model_route(request)

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        if is_passed(context.request.path) and not self._settings.single:
            await self._pass_through(context)
            return
        ollamas = context.route is not None and context.route.dialect is Dialect.OLLAMA
        job = await (self._ollama.read(context) if ollamas and self._ollama is not None else self._read(context))
        if job is None:
            return
        hold = self._hold
        if hold is None or not job.route.streams or (name := hold.name_in(job.request, self._guard)) is None:
            await self._serve(context, job)
        else:
            await hold.serve(name, context, job, self._serve)

    def wants_turn(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """Return whether something stands around the model's turns of this request."""
        return any(turn.wants(route, head, body) for turn in self._turns)

    async def _read(self, context: RequestContext) -> ModelRequest:
        """The request with its body, and what the body says of it. Raises BadRequest, and as `read_body`."""
        request, record, route = context.request, context.record, context.route
        assert route is not None
        record.body = body = await context.read_body()
        form, head = self._read_head(request, body)
        record.model = name = self._name(head, route)
        record.head = head
        return ModelRequest(
            request=request,
            route=route,
            name=name,
            body=body,
            format=form,
            streams=head.stream and route.streams,
            extended=head.extended,
            path=request.target.removeprefix(route.strip),
            sink=context.sink,
            record=record,
            keep_alive=_keep_alive(request),
        )

    async def _serve(self, context: RequestContext, job: ModelRequest) -> None:
        """Take the request to its target, and the answer to ``job.sink``. Raises as `answer`."""
        if job.translator is not None:
            speak(job.sink, job.translator, job.name)
        # An embedding, or a number of tokens, of another model would be of no use.
        stand_ins = _permits_stand_ins(job.request) and job.route.streams
        async with self._targets.chosen(job.name, stand_ins=stand_ins) as target:
            await self._take(context, job, target)
            # This comes behind the answer: the time counts from the last use, and before there may be no process to
            # keep.
            if job.keep_alive is not None and target.model is not None:
                self._fleet.keep(target.model, job.keep_alive)

    async def _take(self, context: RequestContext, job: ModelRequest, target: Target) -> None:
        wish_of(job.request)  # a mistake is an error whether a model here or a peer answers
        if self._admits is not None:
            self._admits(target)
        if target.model is not None and (meant := job.request.header(IDENTITY)) is not None:
            await self._targets.wait_known(target.model)
            if not self._targets.is_still(target.model, meant):
                why = "; X-Appliance-Identity names another model than the one of this name here"
                raise ModelNotFound(target.label, (), why)
        if target.asks and (job.request.header(DOWNLOAD) or "").strip().lower() != "allow":
            raise DownloadNeeded(target.label)
        record = job.record
        record.model, record.requested, record.known = target.label, target.requested, True
        if target.selector is not None:
            record.metadata["selector"] = target.selector
        if (wanted := target.stands_in_for) is not None:
            record.metadata["meanwhile"] = wanted.id
            note = f"{target.label}; for={wanted.id}"
            record.headers = ((b"X-Appliance-Meanwhile", note.encode("latin-1", "replace")),)
            wanted = wanted if self.may_load(wanted, job.request) else None
        if (model := target.model) is not None and not (job.route.loads and self.may_load(model, job.request)):
            await self._models.ask_running(model, job)  # a question to a running model never loads one
            return
        job, use, others = self._take_turn(job, target, self._turns)
        if job.request.alone and use is not None:
            raise Forbidden(
                "windows of applications may ask models, without tools and commands of this server; start it with "
                "--api-key KEY or --cors-origins ORIGIN"
            )
        with self._inflight.begin(
            job.request, target.label, record.metadata, cancel=context.cancel, streams=job.streams
        ) as record.entry:
            if use is None:
                await self._ask(target, job, wanted=wanted)
            else:
                await use(job, partial(self._ask_through, target, others))
        if wanted is not None and use is not None:
            # Not earlier: between its turns a stand-in has no lease, and the load could evict it.
            self._fleet.load_soon(wanted)

    def _take_turn(
        self, job: ModelRequest, target: Target, turns: Sequence[Turn]
    ) -> tuple[ModelRequest, Use | None, Sequence[Turn]]:
        """Offer a request to each of these. Return what is left of it, what answers it, and the turns behind that.

        Raises BadRequest and Forbidden.
        """
        if job.edits and job.format == JSON and job.request.method == "POST":
            model = target.model.id if target.model is not None else target.requested
            for at, turn in enumerate(turns, 1):
                job, use = turn.take(job, model)
                if use is not None:
                    return job, use, turns[at:]
        return job, None, ()

    def _in_pool(self) -> Placing:
        if self._placing is None:
            assert self._make_placing is not None
            self._placing = self._make_placing()
        return self._placing

    async def _ask(self, target: Target, job: ModelRequest, *, wanted: Model | None = None) -> None:
        if target.boxes and self._make_placing is not None:
            await self._in_pool().ask(job, target, wanted=wanted)
        elif target.model is None:
            if wanted is not None:
                self._fleet.load_soon(wanted)
            await self._peers.ask(job, target)
        else:
            await self._models.ask(job, target, target.model, wanted=wanted)

    async def _ask_through(self, target: Target, turns: Sequence[Turn], job: ModelRequest) -> None:
        """Ask for one turn of a request: each of ``turns`` may stand around it."""
        job, use, others = self._take_turn(job, target, turns)
        if use is None:
            await self._ask(target, job)
        else:
            await use(job, partial(self._ask_through, target, others))

    async def _pass_through(self, context: RequestContext) -> None:
        """``/upstream/<model>/<rest>`` and ``/comfyui/<rest>``: as it is, to the model's server. Raises as `answer`."""
        request, record, route = context.request, context.record, context.route
        assert route is not None
        record.model = unquote(below(request).partition("/")[0])
        target, path = await self.passed_target(request)
        body = await context.read_body()
        if not path.startswith("/"):
            await self._move(request, context.sink)
            return
        record.body = body
        if request.method == "POST" and heads.is_object(body):
            record.head = heads.read_passed(body)
        job = ModelRequest(
            request=request,
            route=route,
            name=target.requested,
            body=body,
            edits=False,
            path=path,
            sink=context.sink,
            record=record,
        )
        await self._take(context, job, target)

    async def _move(self, request: Request, sink: Sink) -> None:
        """To the same with a slash behind it: pages there name what belongs to them relative to it.

        The place is relative itself, so that it stays below the path under which a proxy has put the server.
        """
        raw, mark, query = request.target.partition("?")
        there = f"./{raw.rpartition('/')[2]}/{mark}{query}"
        status = 301 if request.method in ("GET", "HEAD") else 308
        await send_whole(sink, status, ((b"Location", there.encode("latin-1")),))

    async def passed_target(self, request: Request) -> tuple[Target, str]:
        """Return the target of a path below ``/upstream/`` or ``/comfyui/``, with the path and query for its server.

        The path is empty, or only a query, where the request's ends with the model's name. Raises ModelNotFound, and
        Conflict for what must not start a model that is not ready.
        """
        _, mark, query = request.target.partition("?")
        rest = below(request)
        if request.path.startswith(UPSTREAM):
            target, path = await self._targets.upstream(rest)
            starts, why = not self._ignores(unquote(path)), "upstream.ignorePaths"
        else:
            if self._catalog.snapshot.find(COMFY_MODEL) is None:
                raise RouteNotFound(request.method, request.path)
            target, path = await self._targets.upstream(COMFY_MODEL + rest)
            starts, why = path in ("", "/"), f"only {COMFY} does"
        if not starts and target.model is not None and not self._fleet.is_ready(target.model.id):
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
        return form, found if found.model or not asked.model else structs.replace(found, model=asked.model)

    def _name(self, head: RequestHead, route: Route) -> str:
        """Raises BadRequest when the request leaves the choice open."""
        if name := self._settings.single or head.model:
            return name
        snapshot = self._catalog.snapshot
        known = list(snapshot.config.models) if snapshot.config is not None else []
        known = known or [model.id for model in snapshot.models]
        if len(known) == 1:
            return known[0]
        if route.name in NAMELESS and (latest := self._fleet.latest_used()):
            return latest
        raise BadRequest(
            'the request names no model; add "model" to it. GET /v1/models lists what there is', param="model"
        )

    def may_load(self, model: Model, request: Request) -> bool:
        """Return whether the request may use the model: it runs, or ``?autoload=`` (else the setting) lets it start."""
        asked = request.query.get("autoload")
        if self._settings.autoload if asked is None else asked in ("true", "1"):
            return True
        return state_of(self._fleet.known(model.id)) != "unloaded"

    def _ignores(self, path: str) -> bool:
        """True if ``/upstream/<model>`` with this rest never starts the model (``upstream.ignorePaths``)."""
        config = self._targets.config
        return config is not None and any(is_found(pattern, path) for pattern in config.upstream.ignore_paths)

    async def _answer_inward(self, request: Request, record: Record, content: bytes, handover: Handover) -> None:
        """Have a request of the program itself answered, without a connection; see `http.way.handover`."""
        route = self.route(request)
        record.path = route.name if route is not None else record.path
        recorder, requests = self._traffic.recorder, self._traffic.lifetime.requests
        sink = recorder.watch(record, handover) if route is not None and route.metered else handover
        body = Body(self._bodies, len(content), _Given(content))
        context = RequestContext(request, route, sink, record, body)
        requests.begin(context.cancel)
        try:
            with context.scope:
                if route is None:
                    raise RouteNotFound(request.method, request.path)
                await self.answer(context)
            context.raise_why()
        except Exception as error:  # noqa: BLE001  it becomes an answer, and a bug a line in the log
            if isinstance(error, ApplianceError):
                handover.fail(error)
            await explain(context, error)
        finally:
            requests.end(context.cancel)
            body.release()
            if isinstance(sink, RecordingSink) and route is not None:
                status = handover.status if handover.ended and handover.status is not None else CLIENT_LEFT
                recorder.finish(record, sink, route.name, sink.outcome(status))
            handover.close()


def _permits_stand_ins(request: Request) -> bool:
    """Raises BadRequest."""
    value = request.header(MEANWHILE)
    if value is not None and value.strip().lower() != "none":
        raise BadRequest(f"the X-Appliance-Meanwhile header is {value!r}; leave it out, or send 'none'")
    return value is None


def _keep_alive(request: Request) -> float | None:
    """The wish in the header ``X-Keep-Alive``, in Ollama's words. Raises BadRequest."""
    value = request.header(KEEP_ALIVE)
    try:
        return keep_alive_in(value) if value is not None else None
    except OllamaRefusal as refused:
        raise BadRequest(f"the X-Keep-Alive header cannot be read: {refused.text}") from None


class _Given:
    """A body that is there."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read_body(self, body: Body) -> bytes:
        return self._content
