"""A request whose engine dies is asked again on the next seat, or its answer is continued there.

A seat is an engine with its devices; which one is next the fleet knows. A request is asked again where nothing of its
answer had been passed on. A stream of which something had is continued from its text (`core.answers.continuation`), and
a record in it says so. Both at most MAX_FALLS times, and only as far as the client lets: see `wish_of`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import trio

from appliance.core.answers.continuation import Partial, Refusal, continued_body
from appliance.core.answers.splice import Seam, Splicer
from appliance.core.models.model import Model
from appliance.core.runs.slash import family_of
from appliance.errors import BadRequest, UpstreamFailed
from appliance.fleet.lease import Lease
from appliance.fleet.status import Broken
from appliance.http.way.relay import MAX_LATE_ANSWER, Trail, error_in
from appliance.http.way.visit import Job
from appliance.traffic.record import aside
from appliance.traffic.request import Request
from appliance.upstream.client import Address, Response

MAX_FALLS = 2
"""Seats after the first that one request may be asked on."""
NAME = b"x-appliance-fallback"
HEADER = b"X-Appliance-Fallback"


class Wish(Enum):
    """How far a client lets the program go. The values are the header's."""

    NONE = "none"
    REPLAY = "replay"
    CONTINUE = "continue"


def wish_of(request: Request) -> Wish:
    """Return the wish in the header, `Wish.CONTINUE` without it. Raises BadRequest."""
    value = request.header(NAME)
    if value is None:
        return Wish.CONTINUE
    try:
        return Wish(value.strip().lower())
    except ValueError:
        known = ", ".join(wish.value for wish in Wish)
        raise BadRequest(f"the X-Appliance-Fallback header is {value!r}; it may be one of: {known}") from None


class Seats(Protocol):
    """The part of the fleet that fallback uses."""

    def seat_of(self, model_id: str) -> str | None: ...

    def has_fallback(self, model_id: str) -> bool: ...

    async def broke(self, model_id: str, address: Address, request: int = 0) -> Broken: ...


class Course:
    """How one request fares with a model's process. ``body`` is what the next process is to be sent."""

    def __init__(self, seats: Seats, model: Model, job: Job, body: bytes) -> None:
        self.body = body
        self.falls = 0
        self._seats = seats
        self._model = model
        self._job = job
        self._first_body = body
        self._on_disk = model.config is None or bool(model.config.engine)
        self._wish = wish_of(job.request)
        self._address: Address | None = None
        self._lease: Lease | None = None
        self._seat: str | None = None
        self.trail: Trail | None = None
        """The part that has been relayed, where it may have to be continued."""
        self._splicer: Splicer | None = None
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        """The fields that the answer's head carries about a replay."""

    def begin(self, lease: Lease, address: Address) -> None:
        """The model's process is leased."""
        self._lease, self._address, self._model = lease, address, lease.model
        if self._on_disk:
            self._seat = self._seats.seat_of(self._model.id)
            watched = self._job.streams and self._wish is not Wish.NONE and self.trail is None
            if watched and self._seats.has_fallback(self._model.id):
                self.trail = Trail(family_of(self._job.route.name) if self._continues else None)

    @property
    def _continues(self) -> bool:
        """Only what goes to a client as it is: plugins, tools and agents read an answer themselves."""
        return self._wish is Wish.CONTINUE and self._job.told and not self._job.request.inward

    @property
    def continues(self) -> bool:
        """The next answer is the rest of one that has begun: `go_on` passes it on, anything else `relay.Relay`."""
        return self._splicer is not None

    async def go_on(self, response: Response) -> None:
        """Pass the rest of an answer on. Raises UpstreamFailed when it breaks off."""
        job = self._job
        if self._splicer is None or self.trail is None:
            raise ValueError("there is nothing to continue")
        if response.streaming and response.status == 200:
            await self._splice(response, self._splicer, self.trail)
        else:
            content = await response.read(MAX_LATE_ANSWER)
            await job.sink.write(error_in(content, response.status, job.route.dialect))
            await job.sink.end()

    async def _splice(self, response: Response, splicer: Splicer, trail: Trail) -> None:
        sink = self._job.sink
        ready = splicer.begin()
        while True:
            if ready:
                await sink.write(ready)
                trail.add(ready)
            chunk = await response.receive()
            if not chunk:
                break
            ready = splicer.feed(chunk)
            if splicer.broken:
                raise UpstreamFailed(self._model.id, "its stream has a record that is too long")
        await sink.end()

    async def fall(self, error: UpstreamFailed) -> bool:
        """The connection broke. True: the request is to be asked again, with ``body``; False: the answer is whole.

        Raises UpstreamFailed, which says how the process ended, where it is neither, and what says that somebody has
        stopped it.
        """
        broke_at = trio.current_time()
        if self._address is None or self._lease is None:
            raise error
        broken = await self._seats.broke(self._model.id, self._address, self._lease.request)
        if broken.error is not None:
            raise broken.error
        ended, following = broken.ended, broken.following
        error = UpstreamFailed(self._model.id, f"{error.why}; {ended}") if ended is not None else error
        may = self._on_disk and self._wish is not Wish.NONE and self._job.route.metered and self.falls < MAX_FALLS
        if following is None or not may or self._job.sink.ended:
            raise error
        self.falls += 1
        if self._job.sink.status is None or (self.trail is not None and self.trail.began is None):
            await self._replay(following)
            return True
        return await self._continue(following, error, ended or error.why, broke_at)

    async def _replay(self, following: str) -> None:
        told = self._note("replayed", following)
        if self._job.sink.status is None:
            self.headers = ((HEADER, told.encode("latin-1", "replace")),)
        else:
            await aside(self._job.sink).write(f": {' '.join(told.split())}\n\n".encode())

    async def _continue(self, following: str, error: UpstreamFailed, why: str, broke_at: float) -> bool:
        partial = self._partial()
        if isinstance(partial, Partial) and partial.finished:
            await self._job.sink.write(partial.closing)
            await self._job.sink.end()
            return False
        body = partial if isinstance(partial, Refusal) else continued_body(self._first_body, partial)
        if isinstance(partial, Refusal) or isinstance(body, Refusal):
            told = next(one.why for one in (partial, body) if isinstance(one, Refusal))
            raise UpstreamFailed(self._model.id, f"{error.why}; it was not continued on {following}: {told}")
        if not partial.begun:
            await self._replay(following)
            return True
        began = self.trail.began if self.trail is not None else None
        took = 1000 * (broke_at - began) if began is not None else 0.0
        seam = Seam(origin=self._seat or "", on=following, why=why.partition("\n")[0], milliseconds=took)
        self._splicer = Splicer(partial, seam)
        self._note("continued", following)
        self.body = body
        return True

    def _partial(self) -> Partial | Refusal:
        if self.trail is not None and self.trail.reads:
            return self.trail.partial()
        if self._wish is not Wish.CONTINUE:
            return Refusal(f"its X-Appliance-Fallback is '{self._wish.value}'")
        return Refusal("this kind of answer is not")

    def _note(self, what: str, following: str) -> str:
        """Into the activity log, too."""
        told = f"{what}; from={self._seat}; on={following}"
        metadata = self._job.record.metadata
        metadata["fallback"] = f"{metadata['fallback']}, {told}" if "fallback" in metadata else told
        return told
