"""The owner of all generations that outlive their requests: by conversation id, one at a time, within limits."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from msgspec import Struct

from appliance.core.answers.ring import Ring
from appliance.core.config.additions import StreamsConfig
from appliance.core.headers import EVENTS
from appliance.errors import Busy, ShuttingDown, UsageError
from appliance.store.stream_files import RETRY, About, StoredStream, StreamFiles, check_folder, open_stream_files
from appliance.streams.generation import (
    LINES,
    OF_HOLDER,
    Generation,
    GenerationEnd,
    GenerationHead,
    RingSink,
    never,
    nothing,
)
from appliance.trio_parts import Changed, beside, persist

TAKE_OVER_AFTER = 0.25
"""Seconds in which a request may still be refused without ending the stream that its id had before."""
MAX_LIVE = 1000
"""Number of running generations; each may hold a request's body, and its client need not be there."""
OVERHEAD = 4096
"""Bytes counted for a stream in addition to its ring."""


class StreamStatus(Struct, frozen=True, kw_only=True):
    """The facts about one stream; times are Unix seconds, 0 for a time that has not come."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


def meant(ids: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Return the known ids that these mean: themselves, or else those that begin with one and ``::``."""
    by_prefix: dict[str, list[str]] = {}
    for conversation in known:
        for prefix in _prefixes(conversation):
            by_prefix.setdefault(prefix, []).append(conversation)
    for wanted in ids:
        yield from (wanted,) if wanted in known else by_prefix.get(wanted, ())


def name_of(conversation: str, holder: str) -> str:
    """Return the name of a conversation among those of all keys: the holder of one finds none of another's.

    ``holder`` is empty where there are no keys, and then the name is the id.
    """
    return f"{holder}{OF_HOLDER}{conversation}" if holder else conversation


def status_of(generation: Generation) -> StreamStatus:
    return StreamStatus(
        conversation_id=generation.conversation,
        is_done=generation.end is not None,
        total_bytes=generation.ring.total,
        started_at=int(generation.started_at),
        completed_at=int(generation.completed_at),
    )


def _prefixes(conversation: str) -> Iterator[str]:
    at = conversation.find("::")
    while at > 0:
        yield conversation[:at]
        at = conversation.find("::", at + 1)


Work = Callable[[RingSink], Awaitable[None]]


class Audience(Protocol):
    """Notified of every generation, in order to read some; it must not hold one up."""

    def begun(self, generation: Generation) -> None:
        """It is there, or was found on disk."""
        ...

    def forget(self, generation: Generation) -> None:
        """Remove its id, so that no request finds it any more."""
        ...


class _Entry(Struct, kw_only=True, eq=False):
    """A generation with the owner's own facts about it."""

    generation: Generation
    interrupted: bytes = b""
    before: _Entry | None = None
    """The generation that gets the id back if the request is refused."""
    key: int | None = None
    expires: float = math.inf

    @property
    def readable(self) -> bool:
        return self.generation.kept


class Streams:
    """Made by `open_streams`. Every method is atomic."""

    def __init__(
        self,
        settings: StreamsConfig,
        nursery: trio.Nursery,
        files: StreamFiles | None,
        audiences: Sequence[Audience],
        max_live: int,
    ) -> None:
        self._max_live = max_live
        self.settings = settings
        self._audiences = audiences
        self.held = 0
        """Bytes of all streams."""
        self._nursery = nursery
        self._files = files
        self._current: dict[str, _Entry] = {}
        self._entries: dict[Generation, _Entry] = {}
        self._streams: dict[Generation, _Entry] = {}  # kept ones; those that have ended in the order they ended in
        self._live = 0
        self._ended = Changed()
        self._wake = trio.Event()
        self._taking_over: deque[tuple[float, _Entry]] = deque()
        self._takes_over = Changed()

    def begin(
        self,
        conversation: str,
        work: Work,
        *,
        streams: bool = True,
        loading: Callable[[], bool] = never,
        interrupted: bytes = b"",
    ) -> Generation:
        """`open`, and do ``work`` in a task of its own. ``work`` reports its errors to its sink, and raises none."""
        generation = self.open(conversation, streams=streams, loading=loading, interrupted=interrupted)
        self.start(generation, work)
        return generation

    def open(
        self,
        conversation: str,
        *,
        streams: bool = True,
        loading: Callable[[], bool] = never,
        interrupted: bytes = b"",
    ) -> Generation:
        """Make a generation, which the caller fills, and ends with `close` or `start`. See `name_of` for its name.

        The caller calls `Generation.pass_on`, and may leave that, or `Generation.follow`. A stream of the same id is
        ended as soon as this one has a good answer, or none within a moment; a refusal leaves it alone. ``streams``:
        the client asked for a stream, so the work continues without its client. ``loading`` says whether the model is
        on its way; ``interrupted`` is the record that ends the stream if the program ends first. Raises Busy and
        ShuttingDown.
        """
        if self._nursery.cancel_scope.cancel_called:
            raise ShuttingDown
        if self._live >= self._max_live:
            raise Busy(f"{self._max_live} generations with an X-Conversation-Id are under way; try again later")
        ring = Ring(self.settings.max_bytes)
        generation = Generation(conversation, time.time(), ring, self, streams=streams, loading=loading)
        generation.last_words = lambda _: interrupted
        entry = _Entry(generation=generation, interrupted=interrupted)
        before = self._current.get(conversation)
        self._current[conversation] = self._entries[generation] = entry
        # An id has a current generation and at most one ``before`` it. The earlier stream stays readable until the new
        # one has a good head: a client that asks again and is refused keeps what it had. A current one that is not
        # readable has no head yet; it is replaced at once, and the new one inherits its ``before``. Two requests that
        # race can therefore never lose the last stream that was good.
        if before is not None and before.readable:
            entry.before = before
        elif before is not None:
            entry.before, before.before = before.before, None
            before.generation.cut(GenerationEnd.REPLACED)
        if entry.before is not None:
            self._taking_over.append((trio.current_time() + TAKE_OVER_AFTER, entry))
            self._takes_over.wake()
        self._live += 1
        for audience in self._audiences:
            audience.begun(generation)
        return generation

    def start(self, generation: Generation, work: Work) -> None:
        """Do ``work`` for it in a task, and close it then."""
        self._nursery.start_soon(self._run, generation, work)

    def close(self, generation: Generation, end: GenerationEnd = GenerationEnd.GIVEN_UP) -> None:
        """Its work is over. ``end`` is how it ends if it has not."""
        self._live -= 1
        self._ended.wake()
        if generation.end is None:
            generation.cut(end)
        if generation not in self._streams:
            self._lose(generation)

    def find(self, conversation: str) -> Generation | None:
        """Return the stream of this id; None also for one that has no head yet."""
        entry = self._current.get(conversation)
        if entry is not None and not entry.readable and entry.before is not None:
            entry = entry.before
        return entry.generation if entry is not None and entry.readable else None

    def waiting(self, conversation: str) -> Generation | None:
        """Return the generation of this id that has no head yet."""
        entry = self._current.get(conversation)
        return entry.generation if entry is not None and entry.generation.head is None else None

    def owner_loading(self, conversation: str) -> bool:
        """True if there is nothing to read yet because the model is on its way."""
        entry = self._current.get(conversation)
        return (
            entry is not None and entry.generation.head is None and entry.before is None and entry.generation.loading()
        )

    def named(self, names: Iterable[str]) -> list[Generation]:
        """Return the streams of these names, or of ``<name>::<anything>``, as often as a name is given."""
        return [stream for name in meant(names, self._current) if (stream := self.find(name) or self.waiting(name))]

    def lookup(self, names: Iterable[str]) -> list[StreamStatus]:
        return [status_of(stream) for stream in self.named(names)]

    def stop(self, conversation: str) -> bool:
        """End it and forget it: it is gone for all at once. False: there was none."""
        entry = self._current.pop(conversation, None)
        if entry is None:
            return False
        self._end(entry.before, GenerationEnd.STOPPED)
        self._end(entry, GenerationEnd.STOPPED)
        return True

    def end_all(self) -> None:
        """End what runs, with the record that says so."""
        for generation in list(self._entries):
            if generation.end is None:
                generation.cut(GenerationEnd.SHUT_DOWN)

    async def wait_ended(self) -> None:
        """Wait until no generation runs, with or without its client."""
        while self._live:
            await self._ended.wait()

    def adopt(self, settings: StreamsConfig) -> None:
        """Follow these settings from now on; the folder of files does not change."""
        self.settings = settings

    # ---- what generations tell ---------------------------------------------------------------------------------------

    def began(self, generation: Generation) -> None:
        entry = self._entries[generation]
        # Three outcomes. A refusal gives the id back to the stream before. A good answer that is not a stream takes the
        # id over, and is forgotten, for nothing of it can be resumed. A stream takes it over and is kept.
        if generation.refused:
            self._restore(entry)
            return
        self._take_over(entry)
        if not generation.kept:
            self._forget(entry)
            return
        self._streams[generation] = entry
        self.held += OVERHEAD
        if self._files is not None:
            about = About(
                conversation=generation.name,
                started_at=generation.started_at,
                interrupted=entry.interrupted,
            )
            entry.key = self._files.begin(about)

    def grew(self, generation: Generation, data: bytes, held: int) -> None:
        entry = self._streams.get(generation)
        if entry is None:
            return
        self.held += held
        if self._files is not None and entry.key is not None:
            self._files.append(entry.key, data)
        # ``held`` is kept up with each chunk. A sum over all streams would cost more than the chunk itself.
        if self.held > self.settings.max_total:
            self._make_room()

    def ended(self, generation: Generation) -> None:
        entry = self._entries[generation]
        generation.completed_at = time.time()
        if generation in self._streams:
            self._streams[generation] = self._streams.pop(generation)
            if self._files is not None and entry.key is not None:
                self._files.finish(entry.key, generation.completed_at)
            self._expire_at(entry, trio.current_time() + self.settings.keep)
        elif generation.head is None:
            self._restore(entry)

    # ---- tasks -------------------------------------------------------------------------------------------------------

    async def _run(self, generation: Generation, work: Work) -> None:
        scope, end = trio.CancelScope(), GenerationEnd.SHUT_DOWN
        generation.cancel = scope.cancel
        try:
            with scope:
                if generation.end is not None:
                    scope.cancel()  # before this task began
                # `Generation.cancel` is caught by this scope, and then the end is GIVEN_UP. Only a cancellation from
                # outside, which is the end of the program, leaves SHUT_DOWN in place.
                await work(RingSink(generation))
            end = GenerationEnd.GIVEN_UP
        finally:
            generation.cancel = nothing
            self.close(generation, end)

    async def take_over(self) -> None:
        """End the streams whose id has a newer request that was not refused in time; never returns."""
        while True:
            while not self._taking_over:
                await self._takes_over.wait()
            # All wait equally long, so they are due in the order of their arrival, and one task serves them all.
            at, entry = self._taking_over.popleft()
            await trio.sleep_until(at)
            if self._current.get(entry.generation.name) is entry:
                self._take_over(entry)
            del entry  # or its bytes would stay in memory until the next one comes

    async def expire(self) -> None:
        """Forget streams when their time has come; never returns."""
        while True:
            self._wake = trio.Event()
            ended = [entry for entry in self._streams.values() if entry.generation.end is not None]
            now = trio.current_time()
            for entry in ended:
                if entry.expires <= now:
                    self._drop(entry)
            with trio.move_on_at(min((e.expires for e in ended if e.expires > now), default=math.inf)):
                await self._wake.wait()

    # ---- keeping -----------------------------------------------------------------------------------------------------

    def adopt_stored(self, stored: Sequence[StoredStream]) -> None:
        """Take over an earlier run's streams on disk, oldest first. They are kept as long as if they had ended now.

        The wall clock is not asked: it may have been wrong when they ended.
        """
        adopted: set[str] = set()
        for found in stored:
            about = found.about
            before = self._current.get(about.conversation)
            if before is not None and about.conversation not in adopted:
                self._discard(found.key)  # this run has a stream of that id already
                continue
            if before is not None:
                self._drop(before)
            adopted.add(about.conversation)
            ring = Ring(self.settings.max_bytes, found.dropped)
            ring.append(found.data)
            generation = Generation(about.conversation, about.started_at, ring, self)
            generation.head = GenerationHead(200, ((b"Content-Type", LINES if about.lines else EVENTS),))
            generation.interrupted_at = found.interrupted_at
            ring.finalize()
            generation.end, generation.completed_at = GenerationEnd.DONE, found.completed_at
            entry = _Entry(generation=generation, key=found.key)
            self._current[about.conversation] = self._entries[generation] = self._streams[generation] = entry
            self.held += ring.held + OVERHEAD
            for audience in self._audiences:
                audience.begun(generation)
            self._expire_at(entry, trio.current_time() + self.settings.keep)
        self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest ended streams first; then the oldest bytes of the largest."""
        for entry in list(self._streams.values()):
            if self.held <= self.settings.max_total:
                return
            if entry.generation.end is not None:
                self._drop(entry)
        # Only running streams are left. The largest loses its oldest bytes: its work goes on, and only readers that are
        # far behind notice. To end it would take the answer from everyone.
        excess = self.held - self.settings.max_total
        if excess > 0 and self._streams:
            ring = max((generation.ring for generation in self._streams), key=lambda ring: ring.held)
            held = ring.held
            ring.shrink(max(held - excess, 0))
            self.held -= held - ring.held

    def _expire_at(self, entry: _Entry, deadline: float) -> None:
        entry.expires = deadline
        self._wake.set()

    def _take_over(self, entry: _Entry) -> None:
        before, entry.before = entry.before, None
        self._end(before, GenerationEnd.REPLACED)

    def _end(self, entry: _Entry | None, end: GenerationEnd) -> None:
        """End it for good, with its last words, and forget it."""
        if entry is not None:
            entry.generation.cut(end)
            self._drop(entry)

    def _restore(self, entry: _Entry) -> None:
        """It was refused, or is over before it began: its id regains its earlier meaning."""
        if self._current.get(entry.generation.name) is entry:
            del self._current[entry.generation.name]
            if entry.before is not None:
                self._current[entry.generation.name] = entry.before
        entry.before = None

    def _lose(self, generation: Generation) -> None:
        self._entries.pop(generation, None)
        for audience in self._audiences:
            audience.forget(generation)

    def _forget(self, entry: _Entry) -> None:
        if self._current.get(entry.generation.name) is entry:
            del self._current[entry.generation.name]

    def _drop(self, entry: _Entry) -> None:
        generation = entry.generation
        if self._streams.pop(generation, None) is None:
            return
        self._lose(generation)
        self.held -= generation.ring.held + OVERHEAD
        self._discard(entry.key)
        current = self._current.get(generation.name)
        if current is not None and current.before is entry:
            current.before = None
        self._forget(entry)

    def _discard(self, key: int | None) -> None:
        if self._files is not None and key is not None:
            self._files.discard(key)


def check_streams(settings: StreamsConfig) -> None:
    """Check the folder before anything is open: raises UsageError if it cannot be used. Later that is a warning."""
    if settings.path:
        try:
            check_folder(Path(settings.path))
        except OSError as error:
            raise UsageError(f"streams cannot be kept in '{settings.path}' (streams.path): {error}") from None


@asynccontextmanager
async def open_streams(
    settings: StreamsConfig, audiences: Sequence[Audience] = (), *, max_live: int = MAX_LIVE, retry: float = RETRY
) -> AsyncGenerator[Streams]:
    """Own all generations; leaving the block ends running ones, with a record that says so."""
    async with AsyncExitStack() as stack:
        files, stored = None, list[StoredStream]()
        if settings.path:
            kept = open_stream_files(Path(settings.path), settings.max_bytes, settings.max_total, retry=retry)
            files, stored = await stack.enter_async_context(kept)
        nursery = await stack.enter_async_context(beside())
        streams = Streams(settings, nursery, files, audiences, max_live)
        streams.adopt_stored(stored)
        if files is not None:
            nursery.start_soon(persist, "writing streams down", partial(files.write, streams.adopt_stored))
        nursery.start_soon(streams.expire)
        nursery.start_soon(streams.take_over)
        try:
            yield streams
        finally:
            streams.end_all()
