"""The fast path: a plain request whose model is ready makes its exchange at once, in the poller's turn, without a task.

Nearly every request is like one before it: the same head, but for its length, from the same address, for a model that
is ready. The meaning of such a head is learnt once (`http.way.known_heads`).

Anything that is not plain, or has to wait, is left to the connection's task before anything has happened. After that
the exchange runs to its end by itself (`core.exchange`). If it ends well, or its client has left, nothing else is
needed. If it fails, the connection gets a task for what may have to wait: the next engine, or the words for an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from msgspec import structs

from appliance.core.bodies import head as heads
from appliance.core.bodies.head import RequestHead
from appliance.core.exchange import Exchange, Refused, Stale
from appliance.core.models.model import Model
from appliance.errors import (
    BadRequest,
    BodyTooLarge,
    Busy,
    KillsEngines,
    ModelNotFound,
    ShuttingDown,
    UpstreamFailed,
)
from appliance.fleet.lease import GivenUp, Lease
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Body, ClientLeft
from appliance.http.bytes.connection import Connection
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest, RequestContext
from appliance.http.way.course import Course
from appliance.http.way.edge import Edge
from appliance.http.way.explaining import followed
from appliance.http.way.hooks import Hold, HoldEnded
from appliance.http.way.known_heads import KnownHead, KnownHeads
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.process import Process
from appliance.http.way.progress import Ping
from appliance.http.way.routes import Route
from appliance.traffic.record import Record, aside
from appliance.traffic.request import Request, Sink
from appliance.traffic.targets import Target
from appliance.upstream.address import Address
from appliance.upstream.connect import SocketWire, connect_now, is_here
from appliance.upstream.pool import Pool

log = logging.getLogger(__name__)

MAX_HEAD = 4 << 10
"""Bytes of a head whose meaning is remembered; a longer one needs a task."""
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([1-9][0-9]{0,14})\r\n")


class FoundProcess(NamedTuple):
    """The model's process that a request is for."""

    target: Target
    model: Model
    address: Address


class _Taken(NamedTuple):
    lease: Lease
    wire: SocketWire
    reused: bool
    """The connection has carried another request."""

    def give_back(self, pool: Pool, address: Address) -> None:
        """Nothing was sent."""
        self.lease.give_back(GivenUp())
        pool.give(address, self.wire)


class RequestEnder(Protocol):
    """Ends requests of the fast path; the gateway."""

    def write_down(
        self, route: Route | None, sink: Sink, record: Record, body: Body, own: HttpSink, *, left: bool
    ) -> None:
        """Write a request down."""
        ...

    async def go_on_in_task(self, request: FastRequest, failure: Exception) -> bool:
        """Go on with a request whose exchange has failed, in a task. As `bytes.connection.Work`."""
        ...

    async def explain_in_task(self, request: FastRequest, raise_why: Callable[[], None]) -> bool:
        """Tell a client why there is no answer, in a task. As `bytes.connection.Work`."""
        ...


class FastHold(Hold, Protocol):
    """A `Hold` that also has requests answered without a task."""

    def begin(
        self, fast_path: FastPath, connection: Connection, known: KnownHead, found: FoundProcess, body: Body, /
    ) -> FastRequest:
        """Return a request that outlives its client."""
        ...


class FastPath:
    """Begins requests of one server that need no task; the gateway asks it first, and ends them as `RequestEnder`."""

    def __init__(self, edge: Edge, pipeline: Pipeline, ask: Ask, hold: FastHold | None, ending: RequestEnder) -> None:
        self.ask = ask
        self.ending = ending
        self.pool = ask.pool
        self.traffic = edge.traffic
        self._settings = edge.settings
        self._bodies = edge.bodies
        self._fleet = ask.fleet
        self._hold = hold
        self._is_open = ask.pool.poller.listens and edge.settings.static is None and not edge.settings.held_for
        self._heads = KnownHeads(edge, pipeline, hold)

    def begin(self, connection: Connection, data: bytes) -> bool:
        """See `bytes.connection.Answers`."""
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end) if self._is_open and 3 < end <= MAX_HEAD else None
        if length is None or len(data) - end != int(length[1]) or connection.left or connection.ending:
            return False
        held, known = self._heads.know(connection.peer, data[:end], length)
        if known is None:
            return False
        content = data[end:]
        try:
            asked = heads.read_json(content)
        except BadRequest:
            return False
        found = self._find(known, asked, content)
        if found is None:
            return False
        # Everything up to here only looks. From here on every step that fails gives back what was taken, so that False
        # always means that nothing has happened. The connection's task then begins with the same bytes.
        body = Body(self._bodies, len(content), connection)
        try:
            body.arrived()
        except (BodyTooLarge, Busy):
            return False
        taken = self._take(known, found, content)
        if taken is None:
            body.release()
            return False
        streams = known.route.streams and asked.stream
        spoken = known.request_with([length[1]] if held is None else [length[1], held[1]])
        self.ask.place(taken.lease, known.route, spoken, asked, content)
        if taken.lease.placed is not None and not taken.lease.placed.is_ready:  # that takes a task
            taken.give_back(self.pool, found.address)
            body.release()
            return False
        begin = FastRequest if held is None or self._hold is None or not known.route.streams else self._hold.begin
        request = begin(self, connection, known, found, body)
        try:
            request.send(taken, spoken, content, asked, streams=streams)
        except (Busy, ShuttingDown):  # no other answer can be kept; the task tells of it
            taken.give_back(self.pool, found.address)
            body.release()
            return False
        return True

    def _find(self, known: KnownHead, asked: RequestHead, content: bytes) -> FoundProcess | None:
        """The model's process that the request is for, if that is ready and gets it as it is."""
        name = self._settings.single or asked.model
        target = self.traffic.targets.known(name) if name else None
        if target is None or (model := target.model) is None or target.asks:
            return None
        if target.boxes and self.traffic.targets.is_at_choice(target):
            return None
        if known.identity is not None and not self.traffic.targets.is_still(model, known.identity):
            return None
        address = self._fleet.address(model.id)
        if address is None:
            return None
        repair = self.ask.repair
        # Compared by identity: a reload makes new targets, and every start of a process a new address with a key of its
        # own. So no remembered head is sent to another process, even if that has the same port.
        if known.target is not target or known.address is not address:
            known.target, known.address, name = target, address, known.route.name
            known.sent = self.ask.plain_head(known.request, known.path, target, model, address)
            known.build = build = self._fleet.engine_of(model.id) or ""
            holds = repair is not None and repair.holds(name, model, build)
            known.options = structs.replace(known.options, label=address.label, holds_refusals=holds)
            known.translates = [each for each in self.ask.translates if each.is_for(name, build)]
            if repair is not None and repair.unable(name, model, b"") is not None:
                known.sent = None  # the task tells of it
        if known.sent is None or not known.is_plain(asked, content):
            return None
        if (
            repair is not None
            and repair.remembered
            and (model.id, known.build) in repair.remembered
            and repair.wants(model, known.build, content)
        ):
            return None
        return FoundProcess(target, model, address)

    def _take(self, known: KnownHead, found: FoundProcess, content: bytes) -> _Taken | None:
        """A lease on the process and a connection to it."""
        # The connection comes before the lease: it can be put back silently, while a lease that is given back counts as
        # a use and serves the queue.
        kept = self.pool.take(found.address)
        wire = kept or connect_now(found.address, self.pool.poller)
        if wire is None:
            return None
        lease = self._fleet.lease(found.model)
        lease.asks = known.path, content
        try:
            lent = lease.take()
        except (ModelNotFound, KillsEngines):
            lent = None  # the task tells of it
        if lent is found.address:
            return _Taken(lease, wire, kept is not None)
        if lent is not None:
            lease.give_back(GivenUp())
        self.pool.give(found.address, wire)
        return None


class FastRequest:
    """One request under way, the `Io` of its exchange. It belongs to its connection, which it releases at its end."""

    __slots__ = (
        "_course",
        "_exchange",
        "_fast_path",
        "_known",
        "_lease",
        "_ping",
        "_sent",
        "_streams",
        "_wire",
        "body",
        "connection",
        "entry",
        "found",
        "own",
        "record",
        "route",
        "sink",
    )

    def __init__(
        self, fast_path: FastPath, connection: Connection, known: KnownHead, found: FoundProcess, body: Body
    ) -> None:
        self.connection = connection
        self.found = found
        self.body = body
        self.route = known.route
        self.own = HttpSink(connection, known.head, body, known.cors)
        self._fast_path = fast_path
        self._known = known
        self._course: Course | None = None
        self._ping: Ping | None = None

    def send(self, taken: _Taken, request: Request, content: bytes, asked: heads.RequestHead, *, streams: bool) -> None:
        """Send the request to its model. Raises Busy and ShuttingDown, and has done nothing then."""
        known, found, fast_path = self._known, self.found, self._fast_path
        traffic, placed = fast_path.traffic, taken.lease.placed
        self._lease, self._wire, reused = taken
        self._streams = streams
        self.record = record = Record(request, self.route.name)
        record.body, record.model, record.known, record.admitted = content, found.model.id, True, True
        record.requested, record.build, record.head = found.target.requested, known.build, asked
        record.placed = placed.held if placed is not None else None
        self.sink = self._open()
        self.entry = record.entry = traffic.inflight.begin(
            request, record.model, record.metadata, cancel=self.cancel, streams=streams
        )
        traffic.metrics.under_way += 1
        if streams:
            self._ping = fast_path.ask.pings.begin(aside(self.sink))
        self._sent = placed.named_in(content) if placed is not None else content
        self._ask(reused=reused)
        traffic.lifetime.requests.begin(self.cancel, request)

    def _ask(self, *, reused: bool) -> None:
        sent, options = self._known.sent, self._known.options
        assert sent is not None
        if self._streams and (trail := self.course().trail) is not None:
            options = structs.replace(options, trail=trail)
        self._exchange = exchange = Exchange(options, self.sink, self, reused=reused)
        self._lease.answer_under_way = exchange
        self._wire.push(b"%b%d%b%b" % (sent[0], len(self._sent), sent[1], self._sent))
        self._wire.listen(exchange.on_engine_bytes, self._engine_ended)

    def job(self) -> ModelRequest:
        return ModelRequest(
            request=self.record.request,
            route=self.route,
            name=self.found.target.requested,
            body=self.record.body or b"",
            streams=self._streams,
            path=self._known.path,
            sink=self.sink,
            record=self.record,
        )

    def cancel(self, why: Exception) -> None:
        """End the request."""
        self._exchange.cancel(why)

    async def finish_in_task(self, context: RequestContext, failure: Exception) -> None:
        """Do what is left of the request, in a task. Raises as `Ask.ask`, or ``failure`` itself."""
        with self.entry as entry:
            entry.cancel = context.cancel
            context.stay()
            match failure:
                case Stale() | Refused():
                    process = self._process()
                    course = self._course_of(process, process.prepare())
                    final = process.next_after(course, failure) if isinstance(failure, Refused) else None
                    await (course.walk() if final is None else process.refuse(final))
                case UpstreamFailed():
                    await self.course().walk(failure)
                case _:
                    raise failure

    def course(self) -> Course:
        """The course of the request, for where its engine dies. Made once; its trail gets every byte that passes."""
        if self._course is None:
            process = self._process()
            process.lent(self._lease)
            self._course = self._course_of(process, self.record.body or b"")
            self._course.begin(self._lease.model)
        return self._course

    def _process(self) -> Process:
        return Process(self._fast_path.ask, self.job(), self.found.target, self.found.model)

    def _course_of(self, process: Process, body: bytes) -> Course:
        ask = self._fast_path.ask
        return Course((process,), ask.fleet.tell, self.found.model, process.job, body, ask.continues)

    def _open(self) -> Sink:
        self.connection.on_left = self._client_left
        through = followed(self.own, self.route)
        return self._fast_path.traffic.recorder.watch(self.record, through) if self.route.metered else self.own

    def _client_left(self) -> None:
        self._exchange.cancel(ClientLeft())

    def _engine_ended(self) -> None:
        self._exchange.on_engine_ended(broken=self._wire.broken)

    # ---- as `core.exchange.Io` ---------------------------------------------------------------------------------------

    def answering(self) -> bool:
        if self._ping is not None:
            self._ping.stop()
        if not self._streams:
            self._lease.hear()
        return True

    def when_drained(self) -> None:
        self.connection.when_drained(self._exchange.on_client_drained)

    def pause(self) -> None:
        self._wire.stop_listening()

    def resume(self) -> None:
        self._wire.listen(self._exchange.on_engine_bytes, self._engine_ended)

    def release(self, *, reusable: bool, failure: Exception | None = None) -> None:
        self._wire.stop_listening()
        if self._streams:
            self._lease.hear()
        if reusable:
            self._fast_path.pool.give(self.found.address, self._wire)
        else:
            self._wire.close()
        # A request on a stale connection keeps its lease: `done` sends it again, and the model must not be evicted in
        # between.
        if not isinstance(failure, Stale):
            given_up = failure is not None and not isinstance(failure, UpstreamFailed)
            self._lease.give_back(GivenUp() if given_up else failure)

    def done(self, failure: Exception | None) -> None:
        if isinstance(failure, Stale):
            address, pool = self.found.address, self._fast_path.pool
            if (wire := connect_now(address, pool.poller)) is not None:
                self._wire = wire
                self._ask(reused=False)
                return
            if is_here(address):
                failure = UpstreamFailed(address.label, "it does not accept connections")
            self._lease.give_back(failure if isinstance(failure, UpstreamFailed) else GivenUp())
        if self._ping is not None:
            self._ping.stop()
        traffic = self._fast_path.traffic
        traffic.lifetime.requests.end(self.cancel)
        try:
            if failure is None or isinstance(failure, ClientLeft | HoldEnded):
                traffic.inflight.end(self.entry)
                self._write_down(left=failure is not None)
            else:
                self._failed(failure)
        except Exception:
            log.exception("a request that has its answer could not be ended; this is a bug")

    def _write_down(self, *, left: bool) -> None:
        self.connection.on_left = None
        try:
            self._fast_path.ending.write_down(self.route, self.sink, self.record, self.body, self.own, left=left)
        finally:
            self.connection.answered(stays=self.own.stays and not left)

    def _failed(self, failure: Exception) -> None:
        self.connection.on_left = None
        self.connection.go_on_in_task(partial(self._fast_path.ending.go_on_in_task, self, failure))
