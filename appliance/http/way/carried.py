"""A plain request that is carried from its head to the end of its answer in the poller's turns, without a task.

Nearly every request is like one before it: the same head, but for its length, from the same address, for a model that
is ready. What such a head means is learnt once (`_Known`), by the functions that every request goes through. All that
they depend on is part of what the head is remembered by, or makes everything be forgotten when it changes.

The connection's task stays parked meanwhile. Whatever is not plain is left to it. `Carrier.begin` gives None where
nothing has happened, and the request goes its ordinary way. Later a `Carried` halts and wakes the task, which takes
over where it stands (`Gateway.go_on`): the client's socket is full, the engine's answer is cut, garbled or not final,
somebody cancels, or the client leaves or sends more. A halted one hears nothing, so the two never write both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from appliance.core.bodies import head as heads
from appliance.core.bodies.head import RequestHead
from appliance.core.bodies.http_message import BodyError, HeadError, ResponseHead
from appliance.core.bodies.http_request import Head, RequestError
from appliance.core.bodies.http_request import read_request as read_head
from appliance.core.bodies.sse import Dialect
from appliance.core.llama.older_bodies import is_older
from appliance.core.llama.schemas import has_schema
from appliance.core.models.model import Model
from appliance.core.settings import HttpSettings
from appliance.errors import ApplianceError, BadRequest, BodyTooLarge, Busy, KillsEngines, ModelNotFound
from appliance.fleet.lease import Lease
from appliance.fleet.owner import Fleet
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Bodies, Body, ClientLeft
from appliance.http.bytes.connection import Connection
from appliance.http.way import fallback
from appliance.http.way.asking import Asking, Standing
from appliance.http.way.explaining import followed
from appliance.http.way.guard import Guard
from appliance.http.way.outgoing import CONVERSATION
from appliance.http.way.pings import Ping
from appliance.http.way.pipeline import KEEP_ALIVE, Pipeline
from appliance.http.way.relay import Relay
from appliance.http.way.routes import Route, is_passed
from appliance.http.way.visit import Job
from appliance.traffic.record import Record, aside
from appliance.traffic.request import Headers, Request, Sink, read_request
from appliance.traffic.targets import Target
from appliance.traffic.traffic import Traffic
from appliance.upstream.address import Address
from appliance.upstream.client import Begun, Response
from appliance.upstream.connect import connect_now
from appliance.upstream.pool import Pool

log = logging.getLogger(__name__)

MAX_KNOWN = 512
"""Heads whose meaning is remembered; one more takes the place of the oldest."""
MAX_HEAD = 4 << 10
"""Bytes of a head whose meaning is remembered; a longer one needs a task."""
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([1-9][0-9]{0,14})\r\n")
_MEANINGFUL = (CONVERSATION, fallback.NAME, KEEP_ALIVE)
"""Headers that ask this program for something that is not plain."""
_JSON = b"application/json"


class Over(Protocol):
    """Writes a request down."""

    def __call__(
        self, route: Route | None, sink: Sink, record: Record, body: Body, own: HttpSink, *, left: bool
    ) -> None: ...


class _Known:
    """What a head means, and what the model's process gets for it."""

    __slots__ = ("address", "cors", "digits", "head", "length_at", "request", "route", "sent", "target")

    def __init__(self, head: Head, request: Request, route: Route, cors: Headers) -> None:
        self.head = head
        self.request = request
        self.route = route
        self.cors = cors
        self.length_at = next(at for at, field in enumerate(head.headers) if field[0].lower() == b"content-length")
        self.digits = head.headers[self.length_at][1]
        self.target: Target | None = None
        self.address: Address | None = None
        self.sent: tuple[bytes, bytes] | None = None
        """The head for the process of ``target`` at ``address``, in two parts: the body's length goes between them.
        None where such requests are not plain.
        """

    def request_with(self, digits: bytes) -> Request:
        """The request whose body has this length."""
        like = self.request
        if digits == self.digits:
            return like
        fields = list(like.headers)
        fields[self.length_at] = (fields[self.length_at][0], digits)
        return Request(
            method=like.method,
            path=like.path,
            target=like.target,
            query=like.query,
            headers=fields,
            http_version=like.http_version,
            client=like.client,
            peer=like.peer,
            first={**like.first, b"content-length": digits},
        )


class Carrier:
    """Begins requests of one server that need no task; the gateway asks it first.

    ``go_on`` takes one over in the connection's task. ``over`` writes down one that has ended.
    """

    def __init__(
        self,
        settings: HttpSettings,
        guard: Guard,
        traffic: Traffic,
        bodies: Bodies,
        fleet: Fleet,
        pool: Pool,
        pipeline: Pipeline,
        asking: Asking,
        go_on: Callable[[Carried], Awaitable[bool]],
        over: Over,
    ) -> None:
        self.asking = asking
        self.pool = pool
        self.traffic = traffic
        self.go_on = go_on
        self.over = over
        self._settings = settings
        self._guard = guard
        self._bodies = bodies
        self._fleet = fleet
        self._pipeline = pipeline
        self._carries = pool.poller.listens and settings.static is None and not settings.held_for
        self._known: dict[tuple[str, bytes, bytes], _Known] = {}
        self._rules = guard.adopted

    def begin(self, connection: Connection, data: bytes) -> Carried | None:
        """Carry the request that ``data`` is, whole and alone. None: it is something else, and nothing has happened."""
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end) if self._carries and 3 < end <= MAX_HEAD else None
        if length is None or len(data) - end != int(length[1]) or connection.left or connection.ending:
            return None
        known = self._know(connection, data[:end], length)
        if known is None:
            return None
        content = data[end:]
        try:
            asked = heads.read_json(content)
        except BadRequest:
            return None
        found = self._find(known, asked, content)
        if found is None:
            return None
        body = Body(self._bodies, len(content), connection)
        try:
            body.grow_to(len(content))
        except (BodyTooLarge, Busy):
            return None
        carried = self._take(connection, known, found, asked, content, body)
        if carried is None:
            body.release()
            return None
        carried.send(length[1])
        return carried

    def _know(self, connection: Connection, raw: bytes, length: re.Match[bytes]) -> _Known | None:
        if self._rules != self._guard.adopted:
            self._rules = self._guard.adopted
            self._known.clear()
        start, end = length.span(1)
        key = connection.peer, raw[:start], raw[end:]
        known = self._known.get(key)
        if known is None and (known := self._learn(connection, raw)) is not None:
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    def _learn(self, connection: Connection, raw: bytes) -> _Known | None:
        """What the head means; None where requests with it are not plain, or not let in."""
        try:
            head = read_head(raw)
            request = read_request(head, self._settings.api_prefix, connection.peer)
            route = self._pipeline.route(request)
            if head.method != "POST" or not head.length or head.upgrade or head.expects or request.query:
                return None
            if route is None or not route.loads or route.dialect is Dialect.OLLAMA or is_passed(request.path):
                return None
            if request.path == self._settings.health:
                return None
            first = request.first
            if any(name in first for name in _MEANINGFUL) or first.get(b"content-type", _JSON) != _JSON:
                return None
            self._guard.check_place(request)
            if not request.public:
                self._guard.check_key(request)
        except (RequestError, ApplianceError):
            return None
        return _Known(head, request, route, self._guard.cors_headers(request))

    def _find(self, known: _Known, asked: RequestHead, content: bytes) -> tuple[Target, Model, Address] | None:
        """The model's process that the request is for, if that is ready and gets it as it is."""
        name = self._settings.single or asked.model
        target = self.traffic.targets.known(name) if name and not asked.extended else None
        model = target.model if target is not None else None
        if target is None or model is None or target.asks:
            return None
        address = self._fleet.address(model.id)
        if address is None:
            return None
        if known.target is not target or known.address is not address:
            known.target, known.address, request = target, address, known.request
            path = request.target.removeprefix(known.route.strip)
            known.sent = self.asking.plain_head(request, path, target, model, address)
        if known.sent is None or self._pipeline.names_plugins(known.route, content):
            return None
        if is_older(known.route.name, content) or has_schema(known.route.name, content):
            return None
        return target, model, address

    def _take(
        self,
        connection: Connection,
        known: _Known,
        found: tuple[Target, Model, Address],
        asked: RequestHead,
        content: bytes,
        body: Body,
    ) -> Carried | None:
        """Take a connection to the process and a lease on it."""
        target, model, address = found
        kept = self.pool.take(address)
        wire = kept or connect_now(address, self.pool.poller)
        if wire is None:
            return None
        begun = Begun(wire, content, reused=kept is not None)
        lease = self._fleet.lease(model)
        lease.asks = known.request.target.removeprefix(known.route.strip), content
        try:
            lent = lease.take()
        except (ModelNotFound, KillsEngines):
            lent = None  # the task tells of it
        if lent is address:
            streams = asked.stream and known.route.streams
            return Carried(self, connection, known, target, model, lease, address, begun, body, streams=streams)
        if lent is not None:
            lease.give_back()
        self.pool.give(address, wire)
        return None


class Carried(Standing):
    """One request under way. It belongs to its connection, which lets it go with `Connection.answered`.

    Until it has ``halted``, it holds the lease, the wire and the entries in all lists; then whoever takes over does.
    """

    __slots__ = (
        "_address",
        "_carrier",
        "_known",
        "_ping",
        "body",
        "connection",
        "entry",
        "halted",
        "model",
        "own",
        "record",
        "sink",
        "streams",
        "target",
        "why",
    )

    def __init__(
        self,
        carrier: Carrier,
        connection: Connection,
        known: _Known,
        target: Target,
        model: Model,
        lease: Lease,
        address: Address,
        begun: Begun,
        body: Body,
        *,
        streams: bool,
    ) -> None:
        super().__init__(lease, begun)
        body.complete = True
        self.target = target
        self.model = model
        self.body = body
        self.streams = streams
        self.halted = False
        """It hears nothing any more; the task takes over."""
        self.why: Exception | None = None
        """Why it was cancelled."""
        self._carrier = carrier
        self.connection = connection
        self._known = known
        self._address = address
        self._ping: Ping | None = None
        self.own = HttpSink(connection, known.head, body, known.cors)

    @property
    def route(self) -> Route:
        return self._known.route

    def send(self, digits: bytes) -> None:
        """Send the request to its model. Where not all of it leaves at once, this halts."""
        known, begun, carrier = self._known, self.begun, self._carrier
        content, sent = begun.unsent, known.sent
        assert sent is not None
        traffic, request = carrier.traffic, known.request_with(digits)
        self.record = record = Record(request, known.route.name)
        record.body, record.model, record.known, record.admitted = content, self.target.label, True, True
        through = followed(self.own, known.route)
        self.sink: Sink = traffic.recorder.watch(record, through) if known.route.metered else self.own
        self.entry = traffic.inflight.begin(request, record.model, record.metadata, cancel=self.cancel)
        record.entry = self.entry
        traffic.metrics.under_way += 1
        self.connection.leaving = self._client_left
        if self.streams:
            self._ping = carrier.asking.pings.begin(aside(self.sink))
        whole = b"%b%b%b%b" % (sent[0], digits, sent[1], content)
        try:
            begun.unsent = begun.wire.push(whole)
        except OSError:  # whoever reads its answer learns why
            begun.unsent = whole
        if begun.unsent:
            self.halted = True
        else:
            begun.wire.listen(self.heard)
        traffic.lifetime.requests.begin(self.cancel, request)

    def job(self) -> Job:
        request, route = self.record.request, self._known.route
        return Job(
            request=request,
            route=route,
            name=self.target.requested,
            body=self.record.body or b"",
            streams=self.streams,
            path=request.target.removeprefix(route.strip),
            sink=self.sink,
            record=self.record,
        )

    def heard(self, data: bytes) -> bool:
        """Bytes from the model's process, b"" at the end; True while more is wanted. Every chunk of a stream passes."""
        relay = self.relay
        try:
            if relay is not None:
                if not data and self.begun.wire.broken:
                    return self._hand_over()  # no end, so not of an answer either whose end is the connection's
                return relay.hear(data) or self._stop()
            found = self.begun.hear_head(data) if data else None
            if found is not None:
                return self._answer(*found)
            return bool(data) or self._hand_over()
        except (HeadError, BodyError):
            return self._hand_over()  # the task reads the head once more, and tells what is wrong with it
        except Exception as error:
            if self.halted:
                log.exception("a request that has its answer could not be ended; this is a bug")
            elif self.relay is not None:
                self.relay.broken = error
            return self._hand_over()

    def _answer(self, head: ResponseHead, rest: bytes) -> bool:
        """The head of the answer is here."""
        if self.sink.status is not None:  # the client has had comments, which not every answer can follow as it is
            return self._hand_over()
        if self._ping is not None:
            self._ping.stop()
        begun, trail = self.begun, None
        response = Response(self._address, begun.wire, "POST", head, b"")
        if self.streams:
            self.course = self._carrier.asking.course(self.job(), self.model)
            self.course.begin(self.lease, self._address)
            trail = self.course.trail
        self.relay = relay = Relay(response, self.sink, self._known.route.dialect, trail)
        begun.response = self.lease.answer_under_way = response
        relay.begin()
        if rest:
            return relay.hear(rest) or self._stop()
        return not response.complete or self._stop()

    def _stop(self) -> bool:
        """The answer is complete, or has to wait for the client."""
        response, relay = self.begun.response, self.relay
        if self.halted or response is None or relay is None or not response.complete:
            return self._hand_over()
        relay.push_rest()
        if not self.own.end_nowait() or self.halted:
            return self._hand_over()
        begun, carrier = self.begun, self._carrier
        self.halt()  # nobody has anything to take over any more
        try:
            if response.reusable:
                carrier.pool.give(self._address, begun.wire)
            else:
                begun.wire.close()
            self.lease.give_back()
            self.let_go()
            carrier.traffic.inflight.end(self.entry)
            carrier.over(self._known.route, self.sink, self.record, self.body, self.own, left=False)
        finally:
            self.connection.answered(stays=self.own.stays)
        return False

    # ---- ending it before its time -----------------------------------------------------------------------------------

    def cancel(self, why: Exception) -> None:
        """End the request, in the task; the first reason counts."""
        if self.why is None:
            self.why = why
        self._hand_over()

    def halt(self) -> None:
        """Hear nothing more: the task is awake, and takes over. Twice is once."""
        self.halted = True
        self.begun.wire.silence()

    def go_on(self) -> Awaitable[bool]:
        """See `http.bytes.connection.Carried`."""
        self.halt()
        return self._carrier.go_on(self)

    def let_go(self) -> None:
        """Nobody ends it through this any more."""
        if self._ping is not None:
            self._ping.stop()
        self.connection.leaving = None
        self._carrier.traffic.lifetime.requests.end(self.cancel)

    def _client_left(self) -> None:
        self.cancel(ClientLeft())

    def _hand_over(self) -> bool:
        if not self.halted:
            self.halt()
            self.connection.wake()
        return False
