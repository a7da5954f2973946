"""Requests to models that are under way: their clients, the answers so far, and a way to end one from outside."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import trio
from msgspec import UNSET, Struct, UnsetType, field

from appliance.core.records.captures import captured_headers
from appliance.core.records.progress import (
    AnswerSoFar,
    EngineSlot,
    Held,
    Phase,
    RequestProgress,
    client_words,
    phase_of,
    progress_of,
    slowest,
)
from appliance.errors import RequestCancelled
from appliance.traffic.request import Request
from appliance.trio_parts import Changed

T = TypeVar("T")
UPDATE_INTERVAL = 0.25
"""Seconds between two reports of how many bytes requests have had."""
SHARED = 0.1
"""Seconds for which the words for a change also serve its other readers; only its milliseconds would differ."""
SUMMED = 1.0
"""Seconds for which a sum of all serves its readers."""
HELD_CHANGES = 128
"""A reader that is further behind gets a snapshot instead; llama-swap's number."""


class InFlightRequest(Struct, frozen=True, kw_only=True):
    """One request as it is shown; of headers that occur twice, the first."""

    id: str
    timestamp: str
    model: str
    req_path: str
    method: str
    req_headers: dict[str, str]
    remote_ip: str
    resp_headers: dict[str, str]
    resp_bytes: int
    elapsed_ms: int
    queue_position: int | UnsetType = UNSET
    """From 1, while it waits in the queue."""
    expected_wait_ms: int | UnsetType = UNSET
    """The time until all is loaded that it waits for, while that is known."""
    metadata: dict[str, str] | UnsetType = UNSET
    client: str = ""
    """Its program and its address, in short."""
    phase: Phase
    tokens: int | UnsetType = UNSET
    """The answer's, so far."""
    tokens_estimated: bool | UnsetType = UNSET
    """True: by the size of the answer, because nobody has counted them."""
    tokens_per_second: float | UnsetType = UNSET
    prompt_processed: int | UnsetType = UNSET
    """Tokens of the prompt that are read, those from the cache included."""
    prompt_total: int | UnsetType = UNSET
    slot: int | UnsetType = UNSET


class InFlightSum(Struct, frozen=True):
    """All requests under way in one line: how many, and the phase that is furthest from an answer."""

    count: int = 0
    phase: Phase | None = None


class Wait(Struct, frozen=True, omit_defaults=True):
    """A request that waits for its model: its place in the queue, and whole seconds until all is loaded before it."""

    position: int | None = None
    expected: int | None = None


class InFlightChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to a reader: ``snapshot`` with all requests (absent when there are none), ``upsert``, ``remove``."""

    operation: str
    requests: list[InFlightRequest] = []
    request: InFlightRequest | UnsetType = UNSET
    id: str | UnsetType = UNSET


class CountedAnswer(Protocol):
    """The answer on its way to a client."""

    @property
    def passed(self) -> int:
        """Bytes of its body so far."""
        ...

    def so_far(self) -> AnswerSoFar: ...


class ShownPlace(Protocol):
    """The place of a request that waits for its model."""

    @property
    def waited(self) -> float:
        """Seconds, once that is over."""
        ...

    def held(self) -> Held | None: ...

    def position(self) -> int | None: ...

    def expected(self) -> float | None: ...


class _NoAnswer:
    passed = 0

    def so_far(self) -> AnswerSoFar:
        return AnswerSoFar()


_NO_ANSWER = _NoAnswer()
Seen = tuple[int, int | None, Held | None]
"""The bytes of an answer that readers know of, the place in the queue, and what it waits for."""
UNSEEN: Seen = 0, None, None


class InFlightEntry(Struct, eq=False):
    """One request under way, made by `InFlight.begin`; shown until the block ends.

    Nothing is put into words, or counted, before somebody reads it: most requests come and go while nobody looks.
    """

    owner: InFlight
    id: str
    request: Request
    model: str
    metadata: Mapping[str, str] | None
    cancel: Callable[[Exception], None]
    streams: bool = False
    """A stream is wanted."""
    place: ShownPlace | None = None
    """Set by the task that waits for the model."""
    last_seen: Seen = UNSEEN
    """The part that readers know of."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    words: tuple[dict[str, str], dict[str, str]] | None = None
    """The headers as they are shown: most of the work, and the same for all readers."""
    answer: CountedAnswer = _NO_ANSWER
    at: float = field(default_factory=time.time)
    began: float = field(default_factory=trio.current_time)

    def __enter__(self) -> InFlightEntry:
        return self

    def __exit__(self, *exc: object) -> None:
        self.owner.end(self)

    def started(self, headers: Sequence[tuple[bytes, bytes]], answer: CountedAnswer) -> None:
        """The answer's head has gone out."""
        self.headers, self.words = headers, None
        self.answer = answer
        self.owner.note_change(self)

    def release(self) -> None:
        """It is over. Nothing of the request is reached through this any more: in a cycle it would wait for Python's
        collector, which then looks for some 20 ms, a few times a second.
        """
        self.cancel = _nothing_to_end
        self.answer = _NO_ANSWER

    @property
    def passed(self) -> int:
        """Bytes of body that have gone out."""
        return self.answer.passed

    @property
    def seen(self) -> Seen:
        """Readers get the request again when this changes."""
        place = self.place
        if place is None:
            return self.answer.passed, None, None
        return self.answer.passed, place.position(), place.held()

    @property
    def came(self) -> float:
        """When an engine got it, if one has it."""
        return self.began + (self.place.waited if self.place is not None else 0.0)

    def held(self) -> Held | None:
        """The thing that it waits for; None once an engine has it."""
        return self.place.held() if self.place is not None else None

    @property
    def phase(self) -> Phase:
        """A small part of `progress`."""
        return phase_of(self.held(), self.answer.so_far(), streams=self.streams)

    def progress(self, slot: EngineSlot | None = None) -> RequestProgress:
        """Its progress; more is known with its slot."""
        return progress_of(self.held(), self.answer.so_far(), slot, streams=self.streams)

    def named(self, header: bytes) -> str | None:
        """The request's header of this (lower-case) name."""
        return self.request.header(header)

    def wait(self) -> Wait | None:
        """None: it does not wait, or nothing is known of that."""
        position, expected = (self.place.position(), self.place.expected()) if self.place is not None else (None, None)
        if position is None and expected is None:
            return None
        return Wait(position, None if expected is None else math.ceil(expected))

    def shown(self, slot: EngineSlot | None = None) -> InFlightRequest:
        request, place, progress = self.request, self.place, self.progress(slot)
        if self.words is None:
            self.words = captured_headers(request.headers), captured_headers(self.headers)
        position, expected = (place.position(), place.expected()) if place is not None else (None, None)
        return InFlightRequest(
            id=self.id,
            timestamp=datetime.fromtimestamp(self.at, UTC).isoformat().replace("+00:00", "Z"),
            model=self.model,
            req_path=request.path,
            method=request.method,
            req_headers=self.words[0],
            remote_ip=request.client,
            resp_headers=self.words[1],
            resp_bytes=self.passed,
            elapsed_ms=round(1000 * (trio.current_time() - self.began)),
            queue_position=UNSET if position is None else position,
            expected_wait_ms=UNSET if expected is None else round(1000 * expected),
            metadata=dict(self.metadata) if self.metadata else UNSET,
            client=client_words(request.header(b"user-agent"), request.client),
            phase=progress.phase,
            tokens=_set(progress.tokens),
            tokens_estimated=progress.estimated or UNSET,
            tokens_per_second=_set(progress.tokens_per_second),
            prompt_processed=_set(progress.prompt_processed),
            prompt_total=_set(progress.prompt_total),
            slot=_set(progress.slot),
        )


def _set(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _nothing_to_end(_: Exception) -> None:
    pass


class InFlight:
    """Owns the registry. Every method that is not async is atomic. Changes are noted only while somebody follows."""

    def __init__(self) -> None:
        self._entries: dict[str, InFlightEntry] = {}
        self._ids = itertools.count(1)
        self._readers = 0
        self._changes: deque[tuple[int, str]] = deque(maxlen=HELD_CHANGES)
        self._next = 0
        self._next_look = -math.inf
        self._news = Changed()
        self._shared: tuple[tuple[int, int], float, list[InFlightChange]] = (-2, -2), 0.0, []
        self._sum, self._sum_until = InFlightSum(), -math.inf

    def begin(
        self,
        request: Request,
        model: str,
        metadata: Mapping[str, str] | None = None,
        *,
        cancel: Callable[[Exception], None],
        streams: bool = False,
    ) -> InFlightEntry:
        """Show the request for the length of the result's block; additions to ``metadata`` also show.

        ``cancel`` is called with RequestCancelled when somebody wants the request to end. It must not raise.
        """
        entry = InFlightEntry(self, str(next(self._ids)), request, model, metadata, cancel, streams)
        self._entries[entry.id] = entry
        if self._readers:
            self._add(entry.id)
        return entry

    def end(self, entry: InFlightEntry) -> None:
        """Show it no more. Leaving the entry's block does so."""
        del self._entries[entry.id]
        entry.release()
        if self._readers:
            self._add(entry.id)

    def cancel(self, request_id: str) -> bool:
        """End a request; its client gets an error, in its stream where that has begun. False: there is none such."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        entry.cancel(RequestCancelled())
        return True

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def entries(self) -> list[InFlightEntry]:
        """All requests under way, oldest first."""
        return list(self._entries.values())

    def snapshot(self) -> list[InFlightRequest]:
        """The same as it is shown."""
        return [entry.shown() for entry in self._entries.values()]

    def summed(self) -> InFlightSum:
        """All requests under way in one line, as it was at most `SUMMED` seconds ago."""
        if self._sum_until < (now := trio.current_time()):
            phases: list[Phase] = [entry.phase for entry in self._entries.values()]
            self._sum, self._sum_until = InFlightSum(len(self._entries), slowest(phases)), now + SUMMED
        return self._sum

    def waits(self, header: bytes) -> dict[str, Wait]:
        """The requests with this header that wait for their model, by its value."""
        named = ((name, entry) for entry in self._entries.values() if (name := entry.named(header)))
        return {name: wait for name, entry in named if (wait := entry.wait()) is not None}

    def follow(self) -> InFlightReader:
        """A reader of the changes from the beginning of its block on; its first `take` is a snapshot."""
        return InFlightReader(self)

    # ---- between entries and readers ---------------------------------------------------------------------------------

    def reader_joined(self) -> None:
        """A reader follows the requests from now on."""
        self._readers += 1

    def left(self) -> None:
        """A reader has stopped."""
        self._readers -= 1
        if not self._readers:
            self._changes.clear()

    def note_change(self, entry: InFlightEntry) -> None:
        """Let readers see the entry as it is now."""
        if self._readers:
            self._add(entry.id)

    def changes_since(self, number: int) -> tuple[list[InFlightChange], int]:
        """Return the changes that a reader at ``number`` has not seen, and its new number.

        Readers that ask for the same ones within `SHARED` seconds have the same list.
        """
        self._look()
        oldest = self._changes[0][0] if self._changes else self._next
        if number < oldest:
            return [InFlightChange(operation="snapshot", requests=self.snapshot())], self._next
        asked, now = (number, self._next), trio.current_time()
        if self._shared[0] != asked or self._shared[1] < now:
            ids = dict.fromkeys(request_id for at, request_id in self._changes if at >= number)
            self._shared = asked, now + SHARED, [self._change(request_id) for request_id in ids]
        return self._shared[2], self._next

    async def wait_changed(self, number: int) -> None:
        """Wait until `changes_since` may have something for a reader at ``number``."""
        while self._next <= number:
            with trio.move_on_at(max(self._next_look, trio.current_time()) if self._entries else math.inf):
                await self._news.wait()
            self._look()

    def _look(self) -> None:
        """Note which answers have grown, and who waits at another place: once in an interval, for all readers."""
        now = trio.current_time()
        if now < self._next_look:
            return
        self._next_look = now + UPDATE_INTERVAL
        for entry in self._entries.values():
            if entry.last_seen != (seen := entry.seen):
                entry.last_seen = seen
                self._add(entry.id)

    def _change(self, request_id: str) -> InFlightChange:
        entry = self._entries.get(request_id)
        if entry is None:
            return InFlightChange(operation="remove", id=request_id)
        return InFlightChange(operation="upsert", request=entry.shown())

    def _add(self, request_id: str) -> None:
        self._changes.append((self._next, request_id))
        self._next += 1
        self._news.wake()


class InFlightReader:
    """One reader of the registry's changes, for the length of its block."""

    def __init__(self, owner: InFlight) -> None:
        self._owner = owner
        self._position = -1

    def __enter__(self) -> InFlightReader:
        self._owner.reader_joined()
        return self

    def __exit__(self, *exc: object) -> None:
        self._owner.left()

    def take(self) -> list[InFlightChange]:
        """Everything that has happened since the last time, several changes of one request as one."""
        changes, self._position = self._owner.changes_since(self._position)
        return changes

    async def wait(self) -> None:
        """Wait until there is probably something to take."""
        await self._owner.wait_changed(self._position)
