"""A process of this program as a place of a request: the lease of its model, its slot, and one exchange with it.

Everything here may wait: for a place in the queue, a load, a client. Then it makes an exchange as the fast path does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial

import trio
from msgspec import Struct, structs

from appliance.core.exchange import Exchange, Refused, RelayOptions, error_in
from appliance.core.headers import without
from appliance.core.models.model import Model
from appliance.errors import UpstreamFailed
from appliance.fleet.hold import HeldPlace, RestoreFailed
from appliance.fleet.lease import Lease, QueuePlace
from appliance.fleet.status import Broken
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest
from appliance.http.way.course import AskAgain, Course
from appliance.http.way.hooks import EngineTranslate, Repairing
from appliance.http.way.outgoing import JSON, edited, ignored, reached, renamed, sent_headers
from appliance.http.way.progress import LoadingStream, Ping, queue_headers, write_meanwhile
from appliance.traffic.record import aside
from appliance.traffic.request import Sink, send_whole
from appliance.traffic.targets import Target
from appliance.upstream.address import Address
from appliance.upstream.client import Headers, Outgoing, relay

LEAST_WAIT = 0.001
"""Seconds; a shorter wait for a model is not written down."""
END_TIME = 2.0
"""Seconds that a process may take to be seen as gone after it broke a connection."""


class Sent(Struct, frozen=True):
    """The parts of a request that do not depend on the engine; its body is `Course.body`."""

    path: str
    headers: Headers
    translates: Sequence[EngineTranslate]
    """These say the request or its answer in other words."""


class Process:
    """The process of a model for one request, as a `Place`. It may be another one for each attempt.

    ``wanted`` is the model for which this one stands in: it is loaded meanwhile.
    """

    name = ""
    is_followed = False

    def __init__(self, ask: Ask, job: ModelRequest, target: Target, model: Model, wanted: Model | None = None) -> None:
        self._ask = ask
        self._fleet = ask.fleet
        self.job = job
        self._target = target
        self._model = model
        self._wanted = wanted
        self._sent: Sent | None = None
        self._lease: Lease | None = None
        self._repairing: Repairing | None = None

    def prepare(self) -> bytes:
        """Return the body with the configuration's edits. Raises BadRequest for what the model cannot do."""
        job, model, targets, repair = self.job, self._model, self._ask.targets, self._ask.repair
        body, path, translates = job.body, job.path, tuple[EngineTranslate, ...]()
        if job.edits:
            translates = tuple(each for each in self._ask.translates if each.wants(job.route.name, body, None))
            name = targets.sent_name(self._target)
            body = edited(job.format, body, targets.edits(model), self._target.requested, name)
            path = renamed(path, name)
        if repair is not None and job.edits:
            lacks = repair.unable(job.route.name, model, body if job.format == JSON else b"")
            if lacks is not None:
                raise lacks
        headers = sent_headers(job.request, model, keys_are_ours=self._ask.guard.asks_for_key)
        self._sent = Sent(path, headers, translates)
        return body

    def lent(self, lease: Lease) -> None:
        """The first attempt is under way, with this lease and the body as it is."""
        self._lease = lease

    async def answer(self, course: Course) -> None:
        """See `Place`."""
        job, fleet, settings = self.job, self._fleet, self._ask.settings
        if self._sent is None:
            self.prepare()
        sent = self._sent
        assert sent is not None
        place = QueuePlace()
        self._lease = lease = fleet.lease(course.model, place)
        lease.asks = sent.path, job.body
        if job.record.entry is not None:
            job.record.entry.place = place
        waits = job.streams and job.reports_wait and not job.request.inward
        waiting = job.record.begin_step("wait")
        loading = self._loading_stream(job, course.model, place) if waits and course.falls == 0 else None
        # Only one of the two may write: a comment in the middle of a record would tear it. The text about a load
        # belongs in front of an answer, so later attempts write comments alone.
        ping = self._ask.pings.begin(aside(job.sink), place) if waits and loading is None else None
        try:
            async with write_meanwhile(loading) if loading is not None else nullcontext() as finish, lease as address:
                self._ask.check_slots(course.model, job.request.method, sent.path)
                self._ask.place(lease, job.route, job.request, job.record.head, course.body)
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
                course.begin(lease.model)  # what was named on the hub has its whole name by now
                self._begin_repairs(course)
                if loading is not None:
                    loading.ready()
                job.record.watch.granted(course.model.id)
                if self._wanted is not None:
                    fleet.load_soon(self._wanted)  # not before the lease: this load could evict the stand-in
                if settings.held_for:
                    await trio.sleep(settings.held_for)
                told = _told_of(place, placed) if not job.request.inward else ()
                hooks = _Hooks(lease, finish, ping, partial(self._note_repairs, course))
                while True:
                    attempt = await self._attempt(course, reached(address, course.model, job.request), told)
                    try:
                        await relay(*attempt, hooks)
                    except Refused as refused:
                        if (final := self.next_after(course, refused)) is None:
                            continue
                        await hooks.end_wait()
                        await self.refuse(final)
                    break
        except RestoreFailed:  # a kept context's file is gone, and the request has reached nobody
            with trio.move_on_after(END_TIME):
                await fleet.wait_gone(course.model.id)
            raise AskAgain from None
        finally:
            if ping is not None:
                ping.stop()

    async def _attempt(self, course: Course, there: Address, told: Headers) -> tuple[Outgoing, RelayOptions, Sink]:
        """Return what to relay for the course's body as it is now, and how."""
        job, lease, sent, repairing = self.job, self._lease, self._sent, self._repairing
        assert lease is not None
        assert sent is not None
        if repairing is not None:
            names = ", ".join(repairing.names).encode()
            told = (*told, *(((b"X-Appliance-Repaired", names),) if names else ()), *ignored(repairing.ignored))
        answer = structs.replace(
            course.relay_options(there.label),
            headers=(*course.headers, *told),
            holds_refusals=repairing is not None,
        )
        # This comes behind the lease: how a body has to look depends on the engine, and only now is it known which one
        # runs.
        body, sink, build = course.body, job.sink, self.build(course.model)
        for each in sent.translates:
            body = await each.body(job.route.name, body, there, build, self._ask.pool)
            sink = each.sink(job.route.name, job.body, sink) if course.splicer is None else sink
        body = lease.placed.named_in(body) if lease.placed is not None else body
        outgoing = Outgoing(there, job.request.method, sent.path, sent.headers, body, self._ask.pool, job.record.watch)
        return outgoing, answer, sink

    def _begin_repairs(self, course: Course) -> None:
        job, model, repair = self.job, course.model, self._ask.repair
        if repair is not None and self._repairing is None and job.edits and job.format == JSON:
            self._repairing = repair.begin(job.route.name, model, self.build(model), course.body)
            if self._repairing is not None:
                course.send_instead(self._repairing.body)

    def next_after(self, course: Course, refused: Refused) -> Refused | None:
        """Give the course another body, which the engine may take; or return the refusal for the client."""
        self._begin_repairs(course)
        assert self._repairing is not None  # nothing is held without it
        final = self._repairing.next_after(refused)
        course.send_instead(self._repairing.body)
        return final

    async def refuse(self, final: Refused) -> None:
        """Pass a refusal on to the client, which may have had comments."""
        sink = self.job.sink
        if sink.status is None:
            await send_whole(sink, final.status, without(final.headers, (b"content-length",)), final.content)
        else:
            await sink.write(error_in(final.content, final.status, self.job.route.dialect))
            await sink.end()

    def _note_repairs(self, course: Course) -> None:
        if self._repairing is not None and self._repairing.names:
            self.job.record.metadata["repaired"] = ", ".join(self._repairing.names)
            self.job.record.sent = course.body
            self._repairing.helped()

    async def broke(self, course: Course) -> Broken:
        """See `Place`."""
        lease = self._lease
        if lease is None or lease.address is None:
            return Broken()
        return await self._fleet.broke(course.model.id, lease.address, lease.request)

    def seat(self, model: Model) -> str | None:
        """See `Place`."""
        return self._fleet.seat_of(model.id)

    def build(self, model: Model) -> str:
        """See `Place`."""
        return self._fleet.engine_of(model.id) or ""

    def has_fallback(self, model: Model) -> bool:
        """See `Place`."""
        return self._fleet.has_fallback(model.id)

    def failure(self, error: UpstreamFailed) -> UpstreamFailed:
        """See `Place`."""
        return error

    def _loading_stream(self, job: ModelRequest, model: Model, place: QueuePlace) -> LoadingStream | None:
        """Return the writer of the load's progress to a stream's client, where the configuration wants one."""
        config = self._ask.targets.config
        own = model.config or config
        wanted = own is not None and own.send_loading_state is True and job.route.loading_state
        if config is None or not wanted or self._fleet.is_ready(model.id):
            return None
        return LoadingStream(
            aside(job.sink), model.id, place, self._ask.settings.ping_after, jokes=config.loading_jokes
        )


def _told_of(place: QueuePlace, placed: HeldPlace | None) -> Headers:
    """The headers about what came before the answer: the request's wait, and the context that its slot got back."""
    if placed is None or not placed.restored:
        return queue_headers(place)
    came_back = b"restored=%d; ms=%d" % (placed.restored, round(placed.seconds * 1000))
    return (*queue_headers(place), (b"X-Appliance-Context", came_back))


class _Hooks:
    """Between an exchange and the lease, the words to a waiting client, and the pings of one attempt."""

    def __init__(
        self, lease: Lease, finish: Callable[[], Awaitable[None]] | None, ping: Ping | None, note: Callable[[], None]
    ) -> None:
        self._note = note
        self._lease = lease
        self._finish = finish
        self._ping = ping

    def began(self, exchange: Exchange) -> None:
        self._lease.answer_under_way = exchange

    def answered(self) -> None:
        self._lease.hear()

    async def answering(self) -> None:
        self._lease.hear()
        self._note()
        await self.end_wait()

    async def end_wait(self) -> None:
        """Nothing more is written to a waiting client."""
        if self._ping is not None:
            self._ping.stop()
        if self._finish is not None:
            await self._finish()
