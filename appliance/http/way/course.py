"""The course of one request through the servers that may answer it: queue, patience, fallback and continuation.

A *place* is such a server: a process of this program, a peer, a box of a pool (`Place`). One that declines, or that no
byte has reached, has not begun: the next one is asked. One that broke is followed where the answer may still be whole:
by another engine of it, or by another place. A request is asked again where nothing of its answer has passed. A
stream of which something has is continued from its text (`core.answers.going_on`), and a record in it says so. Both
at most MAX_FALLS times, and only as far as the client lets: see `wish_of`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import trio

from appliance.core.answers.families import family_of
from appliance.core.answers.going_on import BrokenAnswer, Continues, Refusal, Seam, SecondHalf, StreamSoFar
from appliance.core.exchange import RelayOptions, Trail
from appliance.core.models.model import Model
from appliance.core.records.history import Happening, Tell, refusal
from appliance.errors import ApplianceError, BadRequest, ModelFailedToStart, PeerFailed, UpstreamFailed, WillNotFit
from appliance.fleet.status import Broken
from appliance.http.way.context import ModelRequest
from appliance.http.way.to_others import all_failed
from appliance.traffic.record import aside
from appliance.traffic.request import Request

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


class NotTaken(Exception):
    """A place did not begin the request, so that the next one may. ``error`` is the client's where there is none."""

    def __init__(self, error: ApplianceError) -> None:
        super().__init__(str(error))
        self.error = error


class AskAgain(Exception):
    """A place has changed before the request reached it: it is to be asked again, as it is now."""


class Place(Protocol):
    """A server that may answer a request."""

    @property
    def name(self) -> str:
        """The name by which a note about a fallback calls it, where another place goes on there."""
        ...

    @property
    def is_followed(self) -> bool:
        """Another place may go on where this one broke, because it has the very same model."""
        ...

    async def answer(self, course: Course) -> None:
        """Have it answer; return when the answer is over. It calls `Course.begin` before its first byte leaves.

        Raises NotTaken where it has not begun, AskAgain, UpstreamFailed where it broke, and other errors for the
        client.
        """
        ...

    async def broke(self, course: Course) -> Broken:
        """Return its fate after a connection to it broke."""
        ...

    def seat(self, model: Model) -> str | None:
        """The engine with its devices that has the request now, or the server; None: nothing is known of it."""
        ...

    def build(self, model: Model) -> str:
        """The id of the engine's build, "" where nothing is known of it."""
        ...

    def has_fallback(self, model: Model) -> bool:
        """Return whether another engine of it would follow one that died."""
        ...

    def failure(self, error: UpstreamFailed) -> ApplianceError:
        """Return the error for the client when nothing follows."""
        ...


class Course:
    """The course of one request. ``body`` is the body for the next place; ``places`` are tried in this order. Without
    ``continues`` no broken stream goes on.
    """

    def __init__(
        self,
        places: Sequence[Place],
        tell: Tell,
        model: Model,
        job: ModelRequest,
        body: bytes,
        continues: Continues | None,
    ) -> None:
        self.place, *self._left = places
        self.job = job
        self.body = body
        self.falls = 0
        self.model = model
        self._tell = tell
        self._continues = continues
        self._first_body = body
        self._on_disk = model.config is None or bool(model.config.engine)
        self._wish = wish_of(job.request)
        self._begun = False
        self._seat: str | None = None
        self._broke_at = 0.0
        self._declined: list[tuple[str, ApplianceError]] = []
        self.trail: Trail | None = None
        """The part that has been relayed, where it may have to be continued."""
        self.splicer: SecondHalf | None = None
        """Makes the next answer the rest of the one that has begun."""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        """The fields that the answer's head carries about a replay."""

    @property
    def is_last(self) -> bool:
        """There is no place behind this one."""
        return not self._left

    async def walk(self, failure: UpstreamFailed | None = None) -> None:
        """Have the request answered to its end. ``failure`` is how a first exchange has ended that needed no task.

        Raises what the places do, but never AskAgain, NotTaken and UpstreamFailed: of these, what they tell.
        """
        while failure is None or await self._fall(failure):
            try:
                await self.place.answer(self)
                return
            except UpstreamFailed as error:
                failure = error
            except AskAgain:
                failure = None
            except (NotTaken, ModelFailedToStart, WillNotFit) as error:
                self._turn(error)
                failure = None

    def _turn(self, error: NotTaken | ModelFailedToStart | WillNotFit) -> None:
        """It is the next place's turn. Raises the error for the client where there is none."""
        told = error.error if isinstance(error, NotTaken) else error
        self._declined.append((self.place.name, told))
        if not self._left:
            raise self._last_word(told) from None
        self.place = self._left.pop(0)

    def _last_word(self, told: ApplianceError) -> ApplianceError:
        failed = [(name, error.why) for name, error in self._declined if isinstance(error, PeerFailed)]
        return all_failed(failed, failed) if len(failed) == len(self._declined) else told

    def relay_options(self, label: str) -> RelayOptions:
        """Return how the next answer reaches the client. ``label`` is the name of its server, for errors."""
        return RelayOptions(
            label=label,
            method=self.job.request.method,
            dialect=self.job.route.dialect,
            family=family_of(self.job.route.name),
            headers=self.headers,
            trail=self.trail,
            splicer=self.splicer,
        )

    def send_instead(self, body: bytes) -> None:
        """Nothing of an answer has passed: from now on this body is the request's."""
        self.body = self._first_body = body

    def begin(self, model: Model) -> None:
        """The place has the request. ``model`` is what the name has turned out to mean."""
        self.model, self._begun = model, True
        self.job.record.build = self.place.build(model)
        if self._on_disk:
            self._seat = self.place.seat(model)
            watched = self.job.streams and self._wish is not FallbackWish.NONE and self.trail is None
            if watched and (self.place.has_fallback(model) or (self._left and self.place.is_followed)):
                self.trail = Trail(self._reader(), trio.current_time)

    def _reader(self) -> StreamSoFar | None:
        """Only for what goes to a client as it is: plugins, tools and agents read an answer themselves."""
        as_it_is = self._wish is FallbackWish.CONTINUE and self.job.reports_wait and not self.job.request.inward
        family = family_of(self.job.route.name) if as_it_is else None
        return self._continues(family) if self._continues is not None and family is not None else None

    async def _fall(self, error: UpstreamFailed) -> bool:
        """The connection broke. True: the request is to be asked again, with ``body``; False: the answer is whole.

        Raises the error for the client, with how the process ended, where it is neither, and what says that somebody
        has stopped it.
        """
        self._broke_at = trio.current_time()
        if not self._begun:
            raise self.place.failure(error)
        place = self.place
        broken = await place.broke(self)
        if broken.error is not None:
            self._tell(refusal(self.model.id, broken.error))
            raise broken.error
        ended, following = broken.ended, broken.following
        if following is None and self._left and place.is_followed and (broken.gone or ended is not None):
            self.place = self._left.pop(0)
            following = self.place.name
        error = UpstreamFailed(self.model.id, f"{error.why}; {ended}") if ended is not None else error
        may = (
            self._on_disk and self._wish is not FallbackWish.NONE and self.job.route.metered and self.falls < MAX_FALLS
        )
        # A request that reached an engine is sent again only where its process has died and another seat is left. An
        # engine that lives may still work on it, and an answer that has ended needs nothing more.
        if following is None or not may or self.job.sink.ended:
            raise place.failure(error)
        self.falls += 1
        if self.job.sink.status is None or (self.trail is not None and self.trail.began is None):
            # A replay is free as long as the client has none of the model's words, comments apart. Behind the first
            # record the new engine has to go on where the old one stopped, because nothing that was sent can be taken
            # back.
            await self._replay(following, ended or error.why)
            return True
        return await self._continue(following, place, error, ended or error.why)

    async def _replay(self, following: str, why: str) -> None:
        note = self._note("replayed", following, why)
        if self.job.sink.status is None:
            self.headers = ((_REPLAYED, note.encode("latin-1", "replace")),)
        else:
            await aside(self.job.sink).write(f": {' '.join(note.split())}\n\n".encode())

    async def _continue(self, following: str, place: Place, error: UpstreamFailed, why: str) -> bool:
        partial = self._partial()
        if not isinstance(partial, Refusal) and partial.finished:
            await self.job.sink.write(partial.closing)
            await self.job.sink.end()
            return False
        body = partial if isinstance(partial, Refusal) else partial.continued(self._first_body)
        if isinstance(partial, Refusal) or isinstance(body, Refusal):
            why_not = next(one.why for one in (partial, body) if isinstance(one, Refusal))
            told = UpstreamFailed(self.model.id, f"{error.why}; it was not continued on {following}: {why_not}")
            raise place.failure(told)
        if not partial.begun:
            await self._replay(following, why)
            return True
        began = self.trail.began if self.trail is not None else None
        took = 1000 * (self._broke_at - began) if began is not None else 0.0
        seam = Seam(origin=self._seat or "", on=following, why=why.partition("\n")[0], milliseconds=took)
        self.splicer = partial.splicer(seam)
        self._note("continued", following, why)
        self.body = body
        return True

    def _partial(self) -> BrokenAnswer | Refusal:
        if self.trail is not None and self.trail.reads:
            return self.trail.partial()
        if self._wish is not FallbackWish.CONTINUE:
            return Refusal(f"its X-Appliance-Fallback is '{self._wish.value}'")
        return Refusal("this kind of answer is not")

    def _note(self, what: str, following: str, why: str) -> str:
        """Note it in the activity log and the timeline as well."""
        told, seat = why.partition("\n")[0], self._seat or ""
        self._tell(
            Happening(kind="fallback", model=self.model.id, engine=seat, following=following, error=told, reason=what)
        )
        note = f"{what}; from={self._seat}; on={following}"
        step = self.job.record.begin_step("fallback", note, ago=trio.current_time() - self._broke_at)
        step.ended = time.perf_counter()
        metadata = self.job.record.metadata
        metadata["fallback"] = f"{metadata['fallback']}, {note}" if "fallback" in metadata else note
        return note
