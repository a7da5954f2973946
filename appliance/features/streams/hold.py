"""The hold on a request: its generation outlives it, where an ``X-Conversation-Id`` asks for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import structs

from appliance.core.bodies.sse import Dialect, ErrorInfo, error_record
from appliance.core.records.activity import CLIENT_LEFT
from appliance.errors import BadRequest, RequestCancelled, ShuttingDown
from appliance.features.streams.ends import FirstReader, RingSink
from appliance.features.streams.ids import name_of
from appliance.features.streams.owner import Streams
from appliance.http import errors
from appliance.http.bytes.body import Body
from appliance.http.bytes.connection import Connection
from appliance.http.kernel import Kernel
from appliance.http.way.context import ModelRequest, RequestContext
from appliance.http.way.explaining import ending, explain, followed
from appliance.http.way.fast_path import FastPath, FastRequest, FoundProcess
from appliance.http.way.guard import Guard
from appliance.http.way.hooks import HoldEnded, Serve, Spoken
from appliance.http.way.known_heads import KnownHead
from appliance.http.way.outgoing import CONVERSATION
from appliance.http.way.routes import Route
from appliance.replay.generation import Generation, GenerationEnd, nothing
from appliance.traffic.record import Record, RecordingSink
from appliance.traffic.request import Request, Sink

MAX_ID = 1024  # bytes of an id; a model's name with a UUID before it is a tenth of that
_CUT_SHORT = "the server was stopped before the answer was complete"
_INTERRUPTED = ErrorInfo(message=_CUT_SHORT, type="unavailable_error", code=503, reason="interrupted")
_ENDED = {
    GenerationEnd.STOPPED: "a stop (DELETE /v1/stream) ended this answer; send the request again for a whole one",
    GenerationEnd.REPLACED: (
        "another request with the same X-Conversation-Id has ended this answer; give each request an id of its own "
        "to have both"
    ),
}
"""The reasons that clients get for an end from outside, where their answer has begun."""
_OVERRUN = BadRequest("Stream offset lost, please restart: this reader is slower than streams.max_bytes allows")


def _last_words(sink: Sink, dialect: Dialect, end: GenerationEnd) -> bytes:
    """The last record of a stream that ``sink`` has written so far."""
    why = _ENDED.get(end)
    return ending(sink, dialect, errors.describe(RequestCancelled(why), dialect) if why is not None else _INTERRUPTED)


def raise_end(generation: Generation, end: GenerationEnd | None) -> None:
    """Raises what has ended a generation before it had an answer."""
    match end:
        case None | GenerationEnd.DONE | GenerationEnd.BROKEN | GenerationEnd.GIVEN_UP:
            return
        case GenerationEnd.STOPPED:
            when = "while the model was loading" if generation.loading() else "before its first token"
            raise RequestCancelled(f"request cancelled by a stop {when}")
        case GenerationEnd.REPLACED:
            raise RequestCancelled("request cancelled by another one with the same X-Conversation-Id")
        case GenerationEnd.SHUT_DOWN:
            raise ShuttingDown


class StreamHold:
    """Has requests answered under the owner of streams; a `FastHold`."""

    def __init__(self, streams: Streams, kernel: Kernel) -> None:
        self.header = CONVERSATION
        self.most = MAX_ID
        self.streams = streams
        self._traffic = kernel.traffic
        self._bodies = kernel.edge.bodies
        self._fleet = kernel.owners.fleet

    def name_in(self, request: Request, guard: Guard) -> str | None:
        """See `Hold`. Bytes of the header are UTF-8, as in a path. Raises BadRequest."""
        value = request.header(CONVERSATION)
        if not value:
            return None
        if len(value) > MAX_ID:
            raise BadRequest(f"the X-Conversation-Id header is longer than {MAX_ID} bytes; use a shorter id")
        return name_of(value.encode("latin-1").decode("utf-8", "replace"), guard.holder(request))

    def begin(
        self, fast_path: FastPath, connection: Connection, known: KnownHead, found: FoundProcess, body: Body
    ) -> KeptRequest:
        """See `FastHold`."""
        request = KeptRequest(fast_path, connection, known, found, body)
        request.hold = self
        return request

    def open_generation(self, name: str, record: Record, dialect: Dialect, *, streams: bool) -> Generation:
        """The generation of a request. Raises as `Streams.open_generation`."""

        def loading() -> bool:
            return self._fleet.known(record.model) is not None and not self._fleet.is_ready(record.model)

        generation = self.streams.open_generation(
            name, streams=streams, loading=loading, interrupted=error_record(dialect, _INTERRUPTED)
        )
        generation.overrun = error_record(dialect, errors.describe(_OVERRUN, dialect))
        return generation

    def sink(
        self, record: Record, generation: Generation, route: Route, dialect: Dialect, spoken: Spoken
    ) -> RecordingSink:
        """The sink of the work: it records what goes into the ring, in the dialect of the client."""
        ring = RingSink(generation)
        sink = followed(spoken(record.request, ring), route)
        ring.end_with(partial(_last_words, sink, dialect))
        return self._traffic.recorder.watch(record, sink)

    async def serve(self, name: str, context: RequestContext, job: ModelRequest, serve: Serve, spoken: Spoken) -> None:
        """See `Hold`. ``serve`` is done in a task that lasts.

        Raises RequestCancelled, ShuttingDown and Busy.
        """
        route = context.route or job.route
        # Two scopes, one request. The work belongs to the generation, in a task of the streams' owner, with a context
        # of its own, and this request is only its first reader. So a client that leaves ends the reading and not the
        # work. The body's room and the record go with the work, for both are needed until that ends.
        generation = self.open_generation(name, job.record, route.dialect, streams=job.streams)
        reserved, job.record.outlives, context.follows = context.body.hand_over(), True, True

        async def work() -> None:
            sink = self.sink(job.record, generation, job.route, route.dialect, spoken)
            inner = RequestContext(job.request, job.route, sink, job.record, context.body)
            await self._within(inner, partial(serve, inner, structs.replace(job, sink=sink)), reserved)

        self.streams.start_work(generation, work)
        own = job.sink.inner if isinstance(job.sink, RecordingSink) else job.sink
        raise_end(generation, await generation.pass_on(own))

    def go_on_in_task(
        self, generation: Generation, inner: RequestContext, work: Callable[[], Awaitable[None]], reserved: int
    ) -> None:
        """Do the rest of a request in a task, which had none so far."""
        self.streams.start_work(generation, partial(self._within, inner, work, reserved))

    def close_generation(self, generation: Generation, inner: RequestContext, reserved: int) -> None:
        """A request that had no task is over."""
        self._over(inner, reserved)
        self.streams.close_generation(generation)

    async def _within(self, inner: RequestContext, work: Callable[[], Awaitable[None]], reserved: int) -> None:
        requests = self._traffic.lifetime.requests
        requests.begin(inner.cancel, inner.request)
        try:
            with inner.scope:
                await work()
            inner.raise_why()
        except Exception as error:  # noqa: BLE001  it becomes an answer
            await explain(inner, error)
        finally:
            requests.end(inner.cancel)
            self._over(inner, reserved)

    def _over(self, inner: RequestContext, reserved: int) -> None:
        self._bodies.release(reserved)
        if isinstance(inner.sink, RecordingSink) and inner.route is not None:
            status = inner.sink.status or CLIENT_LEFT
            self._traffic.recorder.finish(inner.record, inner.sink, inner.route.name, status)


class KeptRequest(FastRequest):
    """One whose generation outlives it: the exchange fills a ring, and the client is the ring's first reader."""

    __slots__ = ("_generation", "_reserved", "hold")
    hold: StreamHold

    def _open(self) -> Sink:
        hold, record, request = self.hold, self.record, self.record.request
        name = name_of(request.first[CONVERSATION].decode("ascii"), self._known.holder)
        generation = hold.open_generation(name, record, self.route.dialect, streams=self._streams)
        self._generation = generation
        self._reserved, record.outlives = self.body.hand_over(), True
        generation.cancel = partial(self.cancel, HoldEnded())
        generation.follow(FirstReader(generation, self.own, self.connection.when_drained, self._client_done))
        self.connection.on_left = partial(self._end_client, left=True)
        return hold.sink(record, generation, self.route, self.route.dialect, lambda _, sink: sink)

    def _client_done(self, end: GenerationEnd | None) -> None:
        """The client has its answer, or there will be none."""
        if end is None:
            self._end_client(left=False)
        else:
            self.connection.on_left = None
            explain_end = partial(raise_end, self._generation, end)
            self.connection.go_on_in_task(partial(self._fast_path.ending.explain_in_task, self, explain_end))

    def _end_client(self, *, left: bool) -> None:
        self.connection.on_left = None
        try:
            self._fast_path.ending.write_down(self.route, self.own, self.record, self.body, self.own, left=left)
        finally:
            self.connection.answered(stays=self.own.stays and self.own.ended and not left)
        if left:
            self._generation.unfollow()

    def _inner(self) -> RequestContext:
        return RequestContext(self.record.request, self.route, self.sink, self.record, self.body)

    def _write_down(self, *, left: bool) -> None:
        self._generation.cancel = nothing
        self.hold.close_generation(self._generation, self._inner(), self._reserved)

    def _failed(self, failure: Exception) -> None:
        inner = self._inner()
        self.hold.go_on_in_task(self._generation, inner, partial(self.finish_in_task, inner, failure), self._reserved)
