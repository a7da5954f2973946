"""A request asked of a model's process, and of the next engine where that one dies.

A seat is an engine with its devices; which one is next the fleet knows. A request is asked again where nothing of its
answer has passed. A stream of which something has is continued from its text (`core.answers.continuation`), and a
record in it says so. Both at most MAX_FALLS times, and only as far as the client lets: see `wish_of`.

Everything here may wait: for a place in the queue, a load, a client. Then it makes an exchange as the fast path does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from enum import Enum
from typing import Protocol

import trio
from msgspec import Struct

from appliance.core.answers.continuation import Partial, Refusal, continued_body
from appliance.core.answers.families import family_of
from appliance.core.answers.splice import Seam, Splicer
from appliance.core.bodies.head import NO_SLOT, RequestHead, is_object
from appliance.core.exchange import Exchange, RelayOptions, Trail
from appliance.core.llama.older_bodies import has_images, wants_no_words, with_images
from appliance.core.llama.schemas import has_schema, kept
from appliance.core.models.model import Model
from appliance.core.records.history import Happening, Tell, refusal
from appliance.engines.found import EMBEDDED
from appliance.errors import BadRequest, ModelLoading, ModelNotLoaded, SlotFilesClosed, UpstreamFailed
from appliance.fleet.hold import SHORT, HeldPlace, RestoreFailed, Unnamed
from appliance.fleet.lease import Lease, QueuePlace
from appliance.fleet.owner import Fleet
from appliance.fleet.status import Broken
from appliance.http.way.context import ModelRequest
from appliance.http.way.edge import Edge
from appliance.http.way.older import METRICS, Silent, media_marker, send_metrics
from appliance.http.way.outgoing import edited, reached, renamed, sent_headers
from appliance.http.way.progress import LoadingStream, Ping, Pings, queue_headers, write_meanwhile
from appliance.http.way.routes import Route, reaches_slot_files
from appliance.traffic.record import aside
from appliance.traffic.request import Request
from appliance.traffic.targets import Target
from appliance.upstream.address import Address
from appliance.upstream.client import Headers, HttpCall, Outgoing, relay, split_head
from appliance.upstream.pool import Pool

LEAST_WAIT = 0.001
"""Seconds; a shorter wait for a model is not written down."""
END_TIME = 2.0
"""Seconds that a process may take to be seen as gone after it broke a connection."""
MAX_FALLS = 2
"""Seats after the first that one request may be asked on."""
FALLBACK = b"x-appliance-fallback"
_REPLAYED = b"X-Appliance-Fallback"


class FallbackWish(Enum):
    """The fallbacks that a client permits. The values are the header's."""

    NONE = "none"
    REPLAY = "replay"
    CONTINUE = "continue"


def wish_of(request: Request) -> FallbackWish:
    """Return the wish in the header, `FallbackWish.CONTINUE` without it. Raises BadRequest."""
    value = request.header(FALLBACK)
    if value is None:
        return FallbackWish.CONTINUE
    try:
        return FallbackWish(value.strip().lower())
    except ValueError:
        known = ", ".join(wish.value for wish in FallbackWish)
        raise BadRequest(f"the X-Appliance-Fallback header is {value!r}; it may be one of: {known}") from None


class Held(Protocol):
    """A place where a request is asked: a lease, or a box of the pool."""

    @property
    def model(self) -> Model: ...

    @property
    def request(self) -> int: ...


class Seats(Protocol):
    """The part of the fleet that fallback uses. In a pool the boxes follow its engines; see `at_members`."""

    tell: Tell

    def seat_of(self, model_id: str) -> str | None: ...

    def engine_of(self, model_id: str) -> str | None: ...

    def has_fallback(self, model_id: str) -> bool: ...

    async def broke(self, model_id: str, address: Address, request: int = 0) -> Broken: ...


class Course:
    """The course of one request through model processes. ``body`` is the body for the next process."""

    def __init__(self, seats: Seats, model: Model, job: ModelRequest, body: bytes) -> None:
        self.body = body
        self.falls = 0
        self._seats = seats
        self.model = model
        self._job = job
        self._first_body = body
        self._on_disk = model.config is None or bool(model.config.engine)
        self._wish = wish_of(job.request)
        self._address: Address | None = None
        self._lease: Held | None = None
        self._seat: str | None = None
        self._broke_at = 0.0
        self.trail: Trail | None = None
        """The part that has been relayed, where it may have to be continued."""
        self.splicer: Splicer | None = None
        """Makes the next answer the rest of the one that has begun."""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        """The fields that the answer's head carries about a replay."""

    def begin(self, lease: Held, address: Address) -> None:
        """The model's process is leased, or a box is about to be asked."""
        self._lease, self._address, self.model = lease, address, lease.model
        self._job.record.build = self._seats.engine_of(self.model.id) or ""
        if self._on_disk:
            self._seat = self._seats.seat_of(self.model.id)
            watched = self._job.streams and self._wish is not FallbackWish.NONE and self.trail is None
            if watched and self._seats.has_fallback(self.model.id):
                self.trail = Trail(family_of(self._job.route.name) if self._continues else None, trio.current_time)

    @property
    def _continues(self) -> bool:
        """Only what goes to a client as it is: plugins, tools and agents read an answer themselves."""
        return self._wish is FallbackWish.CONTINUE and self._job.reports_wait and not self._job.request.inward

    async def fall(self, error: UpstreamFailed) -> bool:
        """The connection broke. True: the request is to be asked again, with ``body``; False: the answer is whole.

        Raises UpstreamFailed, which says how the process ended, where it is neither, and what says that somebody has
        stopped it.
        """
        self._broke_at = trio.current_time()
        if self._address is None or self._lease is None:
            raise error
        broken = await self._seats.broke(self.model.id, self._address, self._lease.request)
        if broken.error is not None:
            self._seats.tell(refusal(self.model.id, broken.error))
            raise broken.error
        ended, following = broken.ended, broken.following
        error = UpstreamFailed(self.model.id, f"{error.why}; {ended}") if ended is not None else error
        may = (
            self._on_disk and self._wish is not FallbackWish.NONE and self._job.route.metered and self.falls < MAX_FALLS
        )
        # A request that reached an engine is sent again only where its process has died and another seat is left. An
        # engine that lives may still work on it, and an answer that has ended needs nothing more.
        if following is None or not may or self._job.sink.ended:
            raise error
        self.falls += 1
        if self._job.sink.status is None or (self.trail is not None and self.trail.began is None):
            # A replay is free as long as the client has none of the model's words, comments apart. Behind the first
            # record the new engine has to go on where the old one stopped, because nothing that was sent can be taken
            # back.
            await self._replay(following, ended or error.why)
            return True
        return await self._continue(following, error, ended or error.why)

    async def _replay(self, following: str, why: str) -> None:
        note = self._note("replayed", following, why)
        if self._job.sink.status is None:
            self.headers = ((_REPLAYED, note.encode("latin-1", "replace")),)
        else:
            await aside(self._job.sink).write(f": {' '.join(note.split())}\n\n".encode())

    async def _continue(self, following: str, error: UpstreamFailed, why: str) -> bool:
        partial = self._partial()
        if isinstance(partial, Partial) and partial.finished:
            await self._job.sink.write(partial.closing)
            await self._job.sink.end()
            return False
        body = partial if isinstance(partial, Refusal) else continued_body(self._first_body, partial)
        if isinstance(partial, Refusal) or isinstance(body, Refusal):
            why_not = next(one.why for one in (partial, body) if isinstance(one, Refusal))
            raise UpstreamFailed(self.model.id, f"{error.why}; it was not continued on {following}: {why_not}")
        if not partial.begun:
            await self._replay(following, why)
            return True
        began = self.trail.began if self.trail is not None else None
        took = 1000 * (self._broke_at - began) if began is not None else 0.0
        seam = Seam(origin=self._seat or "", on=following, why=why.partition("\n")[0], milliseconds=took)
        self.splicer = Splicer(partial, seam)
        self._note("continued", following, why)
        self.body = body
        return True

    def _partial(self) -> Partial | Refusal:
        if self.trail is not None and self.trail.reads:
            return self.trail.partial()
        if self._wish is not FallbackWish.CONTINUE:
            return Refusal(f"its X-Appliance-Fallback is '{self._wish.value}'")
        return Refusal("this kind of answer is not")

    def _note(self, what: str, following: str, why: str) -> str:
        """Note it in the activity log and the timeline as well."""
        told, seat = why.partition("\n")[0], self._seat or ""
        self._seats.tell(
            Happening(kind="fallback", model=self.model.id, engine=seat, following=following, error=told, reason=what)
        )
        note = f"{what}; from={self._seat}; on={following}"
        step = self._job.record.begin_step("fallback", note, ago=trio.current_time() - self._broke_at)
        step.ended = time.perf_counter()
        metadata = self._job.record.metadata
        metadata["fallback"] = f"{metadata['fallback']}, {note}" if "fallback" in metadata else note
        return note


class Sent(Struct, frozen=True):
    """The parts of a request that do not depend on the engine; its body is `Course.body`."""

    path: str
    headers: Headers
    pictures: bool
    """The body has some in a form that today's engines do not read."""
    wordless: bool
    """No words are wanted, and today's engines always write one."""


class Ask:
    """Asks the processes of one server's models."""

    def __init__(self, edge: Edge, fleet: Fleet, pool: Pool, pings: Pings) -> None:
        self._settings = edge.settings
        self._guard = edge.guard
        self._targets = edge.traffic.targets
        self._recorder = edge.traffic.recorder
        self.fleet = fleet
        self.pool = pool
        self.pings = pings

    def course(self, job: ModelRequest, model: Model, body: bytes | None = None) -> Course:
        return Course(self.fleet, model, job, job.body if body is None else body)

    def plain_head(
        self, request: Request, path: str, target: Target, model: Model, address: Address
    ) -> tuple[bytes, bytes] | None:
        """The head that the model's process gets with every body, in two parts: before and behind the body's length.

        None where bodies are edited, or asking takes more than sending that and reading the answer.
        """
        timeouts = address.tls or address.header_timeout is not None
        is_checked, edits = reaches_slot_files(request.method, path), self._targets.edits(model)
        if timeouts or is_checked or edits.touches(target.requested, model=self._targets.sent_name(target)):
            return None
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        return split_head(reached(address, model, request), request.method, path, headers)

    async def ask(
        self,
        job: ModelRequest,
        target: Target,
        model: Model,
        course: Course | None = None,
        failure: UpstreamFailed | None = None,
        *,
        wanted: Model | None = None,
    ) -> None:
        """Pass the model's answer on to its end.

        Raises what `Fleet.lease` does, UpstreamFailed, BadRequest and SlotFilesClosed.

        ``failure`` is how a first exchange has ended that needed no task, and ``course`` its course.
        ``wanted`` is the model for which this one stands in: it is loaded meanwhile.
        """
        sent, body = self.prepared(job, target, model)
        course = course or self.course(job, model, body)
        while failure is None or await course.fall(failure):
            try:
                await self.attempt(job, sent, course, wanted)
                return
            except RestoreFailed:
                await self.wait_gone(course)
            except UpstreamFailed as error:
                failure = error

    def prepared(self, job: ModelRequest, target: Target, model: Model) -> tuple[Sent, bytes]:
        """The request as the model's processes get it, and its body with the configuration's edits."""
        body, path = job.body, job.path
        pictures = wordless = False
        if job.edits:
            pictures, wordless = has_images(job.route.name, body), wants_no_words(job.route.name, body)
            name = self._targets.sent_name(target)
            body = edited(job.format, body, self._targets.edits(model), target.requested, name)
            path = renamed(path, name)
        headers = sent_headers(job.request, model, keys_are_ours=self._guard.asks_for_key)
        return Sent(path, headers, pictures, wordless), body

    async def wait_gone(self, course: Course) -> None:
        """A kept context's file is gone, and the request has reached nobody: the next process gets it."""
        with trio.move_on_after(END_TIME):
            await self.fleet.wait_gone(course.model.id)

    async def attempt(self, job: ModelRequest, sent: Sent, course: Course, wanted: Model | None = None) -> None:
        """Ask one process. Raises as `ask`."""
        place = QueuePlace()
        lease = self.fleet.lease(course.model, place)
        lease.asks = sent.path, job.body
        if job.record.entry is not None:
            job.record.entry.place = place
        waits = job.streams and job.reports_wait and not job.request.inward
        waiting = job.record.begin_step("wait")
        loading = self._loading_stream(job, course.model, place) if waits and course.falls == 0 else None
        # Only one of the two may write: a comment in the middle of a record would tear it. The text about a load
        # belongs in front of an answer, so later attempts write comments alone.
        ping = self.pings.begin(aside(job.sink), place) if waits and loading is None else None
        try:
            async with write_meanwhile(loading) if loading is not None else nullcontext() as finish, lease as address:
                self._check_slots(course.model, job.request.method, sent.path)
                self.place(lease, job.route, job.request, job.record.head, course.body)
                waiting.load = place.load
                if (placed := lease.placed.held if lease.placed is not None else None) is not None:
                    job.record.placed = placed
                    await placed.prepare()
                    if place.load is not None:  # a load, and then its context
                        waiting.load = place.load[0] + placed.seconds, place.load[1] + placed.seconds
                waiting.ended = time.perf_counter()
                job.record.loaded = place.load is not None
                if place.waited >= LEAST_WAIT:
                    job.record.metadata["waited_ms"] = str(round(place.waited * 1000))
                course.begin(lease, address)  # what was named on the hub has its whole name by now
                if loading is not None:
                    loading.ready()
                job.record.watch.granted(course.model.id)
                if wanted is not None:
                    self.fleet.load_soon(wanted)  # not before the lease: this load could evict the stand-in
                if self._settings.held_for:
                    await trio.sleep(self._settings.held_for)
                there = reached(address, course.model, job.request)
                answer = RelayOptions(
                    label=there.label,
                    method=job.request.method,
                    dialect=job.route.dialect,
                    family=family_of(job.route.name),
                    headers=(*course.headers, *(_told_of(place, placed) if not job.request.inward else ())),
                    trail=course.trail,
                    splicer=course.splicer,
                )
                # This comes behind the lease: how a body has to look depends on the engine, and only now is it known
                # which one runs.
                body = await self._body(job, sent, course, there)
                body = lease.placed.named_in(body) if lease.placed is not None else body
                outgoing = Outgoing(
                    there, job.request.method, sent.path, sent.headers, body, self.pool, job.record.watch
                )
                sink = Silent(job.sink) if sent.wordless and course.splicer is None else job.sink
                await relay(outgoing, answer, sink, _Hooks(lease, finish, ping))
        finally:
            if ping is not None:
                ping.stop()

    def place(self, lease: Lease, route: Route, request: Request, head: RequestHead, body: bytes) -> None:
        """Give a request for a loaded model its slot, until its lease ends; or its process chooses by itself."""
        if head.slot != NO_SLOT and is_object(body) and not self.fleet.may_name_slot(lease.model.id, head.slot):
            lease.placed = Unnamed()
            return
        slots = self.fleet.hold.of(lease.model.id) if route.slot else None
        if slots is None or head.several or not is_object(body):
            return
        names_slot, owner = route.slot == "named", self._guard.holder(request).encode()
        if len(body) < SHORT and head.slot == NO_SLOT:
            placed = slots.place_short(body, owner, names_slot=names_slot)
            if placed is not False:
                lease.placed = placed
                return
        session = self._recorder.conversation(request, head)
        prompt = b"" if head.uncached else body  # then nothing that was read before is of use
        lease.placed = slots.place(lease.ticket, session, prompt, owner, head.slot, names_slot=names_slot)

    async def _body(self, job: ModelRequest, sent: Sent, course: Course, there: Address) -> bytes:
        """The body as this engine reads it."""
        body = course.body
        if job.edits and has_schema(job.route.name, body) and self.fleet.engine_of(course.model.id) == EMBEDDED:
            body = kept(body)
        if sent.pictures:
            body = with_images(job.route.name, body, await media_marker(there, self.pool))
        return body

    async def ask_running(self, model: Model, job: ModelRequest) -> None:
        """Ask a model as it runs now. Never loads one, never counts as a use of it.

        Raises ModelNotLoaded, or ModelLoading where there is only one, UpstreamFailed and SlotFilesClosed.
        """
        address = self.fleet.address(model.id)
        if address is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self.fleet.wait_quiet(model.id)
        request = job.request
        self._check_slots(model, request.method, job.path)
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        there = reached(address, model, request)
        if request.method == "GET" and request.path == METRICS:
            async with HttpCall(there, "GET", job.path, headers, job.body, pool=self.pool) as found:
                await send_metrics(found, there, self.pool, job.sink, self.fleet.known(model.id))
            return
        outgoing = Outgoing(there, request.method, job.path, headers, job.body, self.pool)
        await relay(outgoing, RelayOptions(label=there.label, method=request.method), job.sink)

    def _check_slots(self, model: Model, method: str, path: str) -> None:
        """Raises SlotFilesClosed for a request that could write a kept context or read one into a slot."""
        if reaches_slot_files(method, path) and self.fleet.owns_slot_files(model.id):
            raise SlotFilesClosed(model.id)

    def _loading_stream(self, job: ModelRequest, model: Model, place: QueuePlace) -> LoadingStream | None:
        """Return the writer of the load's progress to a stream's client, where the configuration wants one."""
        config = self._targets.config
        own = model.config or config
        wanted = own is not None and own.send_loading_state is True and job.route.loading_state
        if config is None or not wanted or self.fleet.is_ready(model.id):
            return None
        return LoadingStream(aside(job.sink), model.id, place, self._settings.ping_after, jokes=config.loading_jokes)


def _told_of(place: QueuePlace, placed: HeldPlace | None) -> Headers:
    """The headers about what came before the answer: the request's wait, and the context that its slot got back."""
    if placed is None or not placed.restored:
        return queue_headers(place)
    came_back = b"restored=%d; ms=%d" % (placed.restored, round(placed.seconds * 1000))
    return (*queue_headers(place), (b"X-Appliance-Context", came_back))


class _Hooks:
    """Between an exchange and the lease, the words to a waiting client, and the pings of one attempt."""

    def __init__(self, lease: Lease, finish: Callable[[], Awaitable[None]] | None, ping: Ping | None) -> None:
        self._lease = lease
        self._finish = finish
        self._ping = ping

    def began(self, exchange: Exchange) -> None:
        self._lease.answer_under_way = exchange

    def answered(self) -> None:
        self._lease.hear()

    async def answering(self) -> None:
        self._lease.hear()
        if self._ping is not None:
            self._ping.stop()
        if self._finish is not None:
            await self._finish()
