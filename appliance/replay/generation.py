"""One generation: the ring of what it has said, and those who read it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import trio
from msgspec import Struct
from trio.lowlevel import ParkingLot

from appliance.core.answers.ring import Gap, Ring
from appliance.core.bodies.sse import end_of_records
from appliance.core.headers import EVENTS, Headers, field

LINES = b"application/x-ndjson"
"""The streams of Ollama's API."""
MAX_REFUSAL = 4096
"""Bytes of an answer that is not kept that are remembered: an error says all in fewer."""
PIECE = 1 << 18
"""Bytes that a reader takes at once."""
BROKE_OFF = "its stream broke off within a record"
"""The words for `GenerationEnd.BROKEN`."""
OF_HOLDER = "\0"
"""Between the holder of a key and an id in a name; no header can have it."""


class GenerationEnd(Enum):
    """The end of a generation."""

    DONE = auto()
    BROKEN = auto()
    """In the middle of a record: nothing may follow it, and it must not pass for a whole answer."""
    STOPPED = auto()
    """A request asked for it."""
    REPLACED = auto()
    """Another one began under its id."""
    GIVEN_UP = auto()
    """The last reader left an answer that is not kept."""
    SHUT_DOWN = auto()


class GenerationHead(Struct, frozen=True):
    status: int
    headers: Headers

    @property
    def content_type(self) -> bytes:
        return field(self.headers, b"content-type") or b""

    @property
    def event_stream(self) -> bool:
        """It consists of records."""
        return self.content_type.startswith((EVENTS, LINES))

    def whole(self, data: bytes) -> int:
        """Return how many of these bytes are whole records."""
        return data.rfind(b"\n") + 1 if self.content_type.startswith(LINES) else end_of_records(data)

    def ends_whole(self, data: bytes) -> bool:
        """Return whether a record may follow these bytes."""
        return not data or self.whole(data[-4:]) == len(data[-4:])


class ReaderSink(Protocol):
    """The sink of the first reader; a part of the shape of every sink of the program."""

    def start(self, status: int, headers: Headers) -> None: ...

    def push(self, data: bytes) -> bool: ...

    async def flush(self) -> None: ...

    async def write(self, data: bytes) -> None: ...

    def finish(self) -> bool: ...

    async def end(self) -> None: ...

    def abort(self) -> None: ...


class TasklessReader(Protocol):
    """A first reader without a task."""

    sink: ReaderSink

    def began(self, head: GenerationHead, *, kept: bool) -> None: ...

    def ended(self) -> None: ...


class Keeper(Protocol):
    """Notified of each event of a generation, while it happens; the owner of all of them."""

    def began(self, generation: Generation) -> None:
        """It has a head."""
        ...

    def grew(self, generation: Generation, data: bytes, held: int) -> None:
        """``held`` is how many more bytes its ring holds."""
        ...

    def ended(self, generation: Generation) -> None: ...


class Audience(Protocol):
    """Notified of every generation that outlives its request, in order to read some; it must not hold one up."""

    def begun(self, generation: Generation) -> None:
        """It is there, or was found on disk."""
        ...

    def forget(self, generation: Generation) -> None:
        """Remove its id, so that no request finds it any more."""
        ...


def never() -> bool:
    return False


def nothing() -> None:
    pass


def wordless(end: GenerationEnd) -> bytes:
    return b""


class Generation:
    """One answer, while it is made or afterwards. Times are unix seconds.

    An event stream with status 200 is *kept*: it goes into the ring, at the producer's pace. Any other answer passes
    from hand to hand to the first reader, and is forgotten. ``streams``: a stream was asked for, so that the generation
    goes on without its first reader. ``loading`` tells whether its model is on its way.
    """

    def __init__(
        self,
        name: str,
        started_at: float,
        ring: Ring,
        keeper: Keeper,
        *,
        streams: bool = True,
        loading: Callable[[], bool] = never,
    ) -> None:
        self.name = name
        self.conversation = name.rpartition(OF_HOLDER)[2]
        """The id, which another name may have as well."""
        self.started_at = started_at
        self.completed_at = 0.0
        self.ring = ring
        self.loading = loading
        self.head: GenerationHead | None = None
        self.end: GenerationEnd | None = None
        self.interrupted_at: int | None = None
        """The beginning of the record about a break in which bytes were lost: a crash of the program."""
        self.refusal = b""
        """The beginning of the body of an answer that is not kept."""
        self.cancel: Callable[[], None] = nothing
        """Ends the work; set by the task that does it."""
        self.last_words: Callable[[GenerationEnd], bytes] = wordless
        """The record that tells its readers of an end from outside."""
        self.overrun = b""
        """The record for a reader whose next bytes are not held any more."""
        self.changed = ParkingLot()
        # There is one producer, and readers in two classes. Resuming readers read the ring, at their own pace. The
        # first reader gets an answer of any kind, with a task (`pass_on`) or without (`TasklessReader`). ``_live`` is
        # the shortcut for that one: the producer calls it with each new piece. It holds only while the reader has seen
        # all that is in the ring; the first refusal ends it, and the ring is the buffer from then on. So no reader ever
        # slows the producer of a stream.
        self._keeper = keeper
        self._streams = streams
        self._channel: tuple[trio.MemorySendChannel[bytes], trio.MemoryReceiveChannel[bytes]] | None = None
        """To a first reader in a task, once there is something that is not kept."""
        self._first_left = False
        self._live: Callable[[bytes], bool] | None = None  # gives the first reader what is new, at once
        self._over: trio.Event | None = None  # the first reader has to look for itself
        self._reader: TasklessReader | None = None  # a first reader without a task

    @property
    def kept(self) -> bool:
        return self.head is not None and self.head.status == 200 and self.head.event_stream

    @property
    def refused(self) -> bool:
        return self.head is not None and self.head.status >= 400

    def follow(self, reader: TasklessReader) -> None:
        """Have this one be the first reader, instead of `pass_on`."""
        self._reader = reader

    def unfollow(self) -> None:
        """The first reader has left. What is not kept is then given up."""
        self._reader = self._live = None
        self._first_left = True
        # Without a head nothing says yet whether the answer will be kept. A client that asked for a stream gets the
        # benefit of the doubt, and may come back for it. Any other answer is lost without this reader, so the work
        # ends.
        if self.end is None and not self.kept and (self.head is not None or not self._streams):
            self.cancel()

    def live(self, give: Callable[[bytes], bool]) -> None:
        """Give the first reader what is new at once, until ``give`` returns False. It has seen all that is there."""
        self._live = give

    async def wait_begun(self) -> None:
        """Until it has a head, or never will."""
        while self.head is None and self.end is None:
            await self.changed.park()

    async def wait_ended(self) -> None:
        """Until nothing more will come."""
        while self.end is None:
            await self.changed.park()

    def reader(self, offset: int) -> GenerationReader:
        """Read from this offset on. A reader that has seen more than outlived a break gets an error."""
        return GenerationReader(self, offset if self.interrupted_at is None else min(offset, self.interrupted_at))

    async def pass_on(self, sink: ReaderSink) -> GenerationEnd | None:
        """Be the first reader: pass the whole answer on. Return how it ended, if that was before it began.

        A first reader that leaves early loses what is not kept; a generation that is not kept is then given up.
        """
        try:
            await self.wait_begun()
            if self.head is None:
                return self.end
            sink.start(self.head.status, self.head.headers)
            last = await (self._replay(sink) if self.kept else self._hand_over(sink))
            if last is None:
                sink.abort()
                return None
            if last:
                await sink.write(last)
            await sink.end()
            return None
        finally:
            self._first_left = True
            if self._channel is not None:
                self._channel[1].close()
            if self.end is None and not self.kept and (self.head is not None or not self._streams):
                self.cancel()

    async def _replay(self, sink: ReaderSink) -> bytes | None:
        """As `GenerationReader.closing`."""
        reader = self.reader(0)

        def give(data: bytes) -> bool:
            reader.last = data
            reader.offset += len(data)
            return sink.push(data)

        try:
            while data := await reader.receive():
                await sink.write(data)
                if reader.offset == self.ring.total and self.end is None:
                    await self._follow(give)
                    await sink.flush()
        except trio.Cancelled:
            if not reader.whole:
                sink.abort()
            raise
        return reader.closing()

    async def _follow(self, give: Callable[[bytes], bool]) -> None:
        """Have the producer itself call ``give``, which spares each piece a task switch; until it returns False.

        It is given everything from now on: nothing awaits between the caller's look at the ring and this.
        """
        full = trio.Event()

        def take(data: bytes) -> bool:
            if give(data):
                return True
            full.set()
            return False

        self._live, self._over = take, full
        try:
            await full.wait()
        finally:
            self._live = None

    async def _hand_over(self, sink: ReaderSink) -> bytes | None:
        if self.end is None or self._channel is not None:
            async for data in self._to_first()[1]:
                await sink.write(data)
        return b"" if self.end is GenerationEnd.DONE else None

    def begin(self, head: GenerationHead) -> None:
        if self.end is None:
            self.head = head
            self._keeper.began(self)
            if self._reader is not None:
                self._reader.began(head, kept=self.kept)
            self.changed.unpark_all()

    def push(self, data: bytes) -> bool | None:
        """Give a first reader without a task an answer that is not kept. As `ReaderSink.push`; None: there is none."""
        if self._reader is None:
            return None
        self.refusal += data[: MAX_REFUSAL - len(self.refusal)]
        return self._reader.sink.push(data)

    async def hand(self, data: bytes) -> None:
        """To the first reader, who has an answer that is not kept."""
        self.refusal += data[: MAX_REFUSAL - len(self.refusal)]
        if not self._first_left:
            try:
                await self._to_first()[0].send(data)
            except trio.BrokenResourceError:
                pass  # it has left this moment

    def keep(self, data: bytes) -> None:
        """Into the ring, for all who read."""
        held = self.ring.held
        if self.ring.append(data):
            self._keeper.grew(self, data, self.ring.held - held)
            # A reader that is full is dropped from here, and reads on from the ring. The producer never waits for it.
            if self._live is not None and not self._live(data):
                self._live = None
            if self.changed:
                self.changed.unpark_all()

    def finish(self, end: GenerationEnd) -> None:
        """End the generation. Later bytes are ignored; the first end counts."""
        if self.end is None:
            self.end = end
            self.last_words = wordless  # they hold the sink of the work, which holds this
            self.ring.finalize()
            if self._channel is not None:
                self._channel[0].close()
            self._keeper.ended(self)
            # The reader is removed before it is called: it may call `unfollow` in turn, and an end counts once.
            follower, self._reader, self._live = self._reader, None, None
            if follower is not None:
                follower.ended()
            self.changed.unpark_all()
            if self._over is not None:
                self._over.set()

    def _to_first(self) -> tuple[trio.MemorySendChannel[bytes], trio.MemoryReceiveChannel[bytes]]:
        if self._channel is None:
            self._channel = trio.open_memory_channel[bytes](0)
        return self._channel

    def cut(self, end: GenerationEnd) -> None:
        """End it from outside, with its last words where it still may have any."""
        if self.head is not None and self.kept and self.end is None:
            ring = self.ring
            tail = ring.since(max(ring.total - 4, ring.dropped))
            if isinstance(tail, Gap) or not self.head.ends_whole(b"".join(tail)):
                end = GenerationEnd.BROKEN
            elif record := self.last_words(end):
                self.keep(record)
        self.finish(end)
        self.cancel()


class GenerationReader:
    """Reads one kept generation. It keeps the generation in memory, and never delays it."""

    def __init__(self, generation: Generation, offset: int) -> None:
        self.offset = offset
        self.overtaken = False
        """The next bytes are not held any more."""
        self.last = b""
        """The newest bytes that it was given."""
        self._generation = generation

    @property
    def whole(self) -> bool:
        """A record may follow what it was given."""
        head = self._generation.head
        return head is not None and head.ends_whole(self.last)

    def closing(self) -> bytes | None:
        """Behind the last bytes: the record that is left to say, if any. None: to break off, for nothing may follow.

        No reader may take for whole what is not.
        """
        generation = self._generation
        if self.overtaken:
            return generation.overrun if generation.overrun and self.whole else None
        if generation.end is GenerationEnd.DONE or (generation.kept and generation.end is not GenerationEnd.BROKEN):
            return b""
        return None

    def take(self) -> bytes:
        """The next bytes that are here; b"" if there are none, and if this reader was overtaken.

        They end where a record ends, unless it is longer than `PIECE`, or the generation itself broke off within one.
        """
        found = self._generation.ring.since(self.offset, PIECE)
        if isinstance(found, Gap):
            self.overtaken = True
            return b""
        data = b"".join(found)
        # Only a full piece can end inside a record. A shorter one goes to the end of the ring, and each push ends with
        # a record.
        if len(data) == PIECE and (head := self._generation.head) is not None and (end := head.whole(data)):
            data = data[:end]
        self.offset += len(data)
        self.last = data or self.last
        return data

    async def receive(self) -> bytes:
        """The next bytes, as `take`; b"" only at the end, also if this reader was overtaken."""
        waited = False
        while not (data := self.take()) and not self.overtaken and self._generation.end is None:
            await self._generation.changed.park()
            waited = True
        if not waited:
            await trio.lowlevel.checkpoint()
        return data
