"""The way of a request for a model: body, target, lease, edits, exchange, and the answer's bytes back, unmodified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import quote, unquote

from msgspec import Struct, structs

from appliance.catalog.catalog import Catalog
from appliance.core.bodies import head as heads
from appliance.core.bodies import keep_alive
from appliance.core.bodies.head import RequestHead
from appliance.core.config.scalars import is_found
from appliance.core.models.model import Model
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
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest, RequestContext, Use
from appliance.http.way.course import Course, wish_of
from appliance.http.way.edge import Edge
from appliance.http.way.explaining import explain
from appliance.http.way.handover import Handover, Inward
from appliance.http.way.hooks import Hold, Placing, Translate, Turn
from appliance.http.way.outgoing import IDENTITY, JSON, Format, format_of, head_of
from appliance.http.way.process import Process
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
_IN_HEADER = " !#$&'()*+,/:=?@[]"
"""The signs of a client's name that a header repeats as they are; all others are percent-encoded."""


class Hooks(Struct, frozen=True, kw_only=True):
    """The hooks of features in the way of a request, each kind in the order in which it is asked.

    The door of a pool has ``admits`` alone: what comes through it is answered here or refused.
    """

    translates: Sequence[Translate] = ()
    turns: Sequence[Turn] = ()
    """Each gets what the one before it has left."""
    hold: Hold | None = None
    placings: Sequence[Placing] = ()
    """The first that knows a course for a request gives it; without one it is asked of the model's process."""
    admits: Callable[[Target], None] | None = None
    """Raises NotPlaced for a request that another box has to answer."""

    def spoken(self, request: Request, sink: Sink) -> Sink:
        """Return the sink for the answer to a request, in its dialect."""
        for each in self.translates:
            sink = each.sink(request, sink)
        return sink


class Pipeline:
    """Answers the requests that belong to a model's process or a peer.

    A request is read once, its way is decided once, from values, and one function takes it there.
    """

    def __init__(self, edge: Edge, catalog: Catalog, ask: Ask, hooks: Hooks, inward: Inward | None = None) -> None:
        """``inward`` is the program's way to ask itself; its requests are answered here."""
        self._settings = edge.settings
        self._guard = edge.guard
        self._traffic = edge.traffic
        self._targets = edge.traffic.targets
        self._inflight = edge.traffic.inflight
        self._bodies = edge.bodies
        self._catalog = catalog
        self._fleet = ask.fleet
        self._models = ask
        self.hooks = hooks
        if inward is not None:
            inward.answer = self._answer_inward

    def route(self, request: Request) -> Route | None:
        """Return the route of a request for a model; None for the program's own routes."""
        if self._settings.single:
            answered_here = (CORS_PROXY, TOOLS, self._settings.predict)
            return single_route(request) if request.path not in answered_here else None
        if is_passed(request.path):
            ours = request.path.startswith(UPSTREAM)
            return passed_route(request.method, self._targets.rest_of(below(request)) if ours else "")
        if (known := model_route(request)) is not None:
            return known
        return next((found for each in self.hooks.translates if (found := each.route(request)) is not None), None)

    def translate_of(self, request: Request) -> Translate | None:
        """Return what takes a request in another dialect."""
        return next((each for each in self.hooks.translates if each.route(request) is not None), None)

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError for what cannot be answered, also after the answer has begun; ClientLeft."""
        if is_passed(context.request.path) and not self._settings.single:
            await self._pass_through(context)
            return
        translate = self.translate_of(context.request)
        job = await (self._read(context) if translate is None else translate.read(context))
        if job is None:
            return
        hold = self.hooks.hold
        if hold is None or not job.route.streams or (name := hold.name_in(job.request, self._guard)) is None:
            await self._serve(context, job)
        else:
            await hold.serve(name, context, job, self._serve, self.hooks.spoken)

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
        if job.begin is not None:
            job.begin(job.sink)
        # An embedding, or a number of tokens, of another model would be of no use.
        stand_ins = _permits_stand_ins(job.request) and job.route.streams
        async with self._targets.chosen(job.name, stand_ins=stand_ins, route=job.route.name) as target:
            await self._take(context, job, target)
            # This comes behind the answer: the time counts from the last use, and before there may be no process to
            # keep.
            if job.keep_alive is not None and target.model is not None:
                self._fleet.keep(target.model, job.keep_alive)

    async def _take(self, context: RequestContext, job: ModelRequest, target: Target) -> None:
        wish_of(job.request)  # a mistake is an error whether a model here or a peer answers
        if self.hooks.admits is not None:
            self.hooks.admits(target)
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
        if target.instead_of:
            record.metadata["requested"] = target.instead_of
            note = f"requested={quote(target.instead_of, _IN_HEADER)}; used={target.label}"
            record.headers = ((b"X-Appliance-Model", note.encode("latin-1", "replace")),)
        if (wanted := target.stands_in_for) is not None:
            record.metadata["meanwhile"] = wanted.id
            note = f"{target.label}; for={wanted.id}"
            record.headers = (*record.headers, (b"X-Appliance-Meanwhile", note.encode("latin-1", "replace")))
            wanted = wanted if self.may_load(wanted, job.request) else None
        if (model := target.model) is not None and not (job.route.loads and self.may_load(model, job.request)):
            await self._models.ask_running(model, job)  # a question to a running model never loads one
            return
        job, use, others = self._take_turn(job, target, self.hooks.turns)
        with self._inflight.begin(
            job.request, target.label, record.metadata, cancel=context.cancel, streams=job.streams
        ) as record.entry:
            if use is None:
                course = await self._course(job, target, wanted)
                await course.walk()
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
                if use is not None and turn.acts and job.request.alone:
                    raise Forbidden(
                        "windows of applications may ask models, without tools and commands of this server; start it "
                        "with --api-key KEY or --cors-origins ORIGIN"
                    )
                if use is not None:
                    return job, use, turns[at:]
        return job, None, ()

    async def _course(self, job: ModelRequest, target: Target, wanted: Model | None = None) -> Course:
        """Say which servers may answer a request."""
        for placing in self.hooks.placings:
            if (course := await placing.course(job, target, wanted)) is not None:
                return course
        if target.model is None:
            raise ModelNotFound(target.requested)
        process = Process(self._models, job, target, target.model, wanted)
        return Course((process,), self._fleet.tell, target.model, job, process.prepare(), self._models.continues)

    async def _ask_through(self, target: Target, turns: Sequence[Turn], job: ModelRequest) -> None:
        """Ask for one turn of a request: each of ``turns`` may stand around it."""
        job, use, others = self._take_turn(job, target, turns)
        if use is None:
            course = await self._course(job, target)
            await course.walk()
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
        return keep_alive.seconds_in(value) if value is not None else None
    except ValueError as error:
        raise BadRequest(f"the X-Keep-Alive header cannot be read: {error}") from None


class _Given:
    """A body that is there."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read_body(self, body: Body) -> bytes:
        return self._content
