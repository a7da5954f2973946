"""The two ends of a held request: the sink that its work writes into, and the first reader of what came of that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.core.headers import Headers
from appliance.replay.generation import Generation, GenerationEnd, GenerationHead, ReaderSink


class RingSink:
    """The sink of a generation's work; it has the shape of every sink of the program.

    The generation does not know it: the kept part of a stream would be in a cycle, and stay for hours after its time.
    """

    def __init__(self, generation: Generation) -> None:
        self.sent = 0
        self._generation = generation
        self._pushed = b""
        self._finished = False

    def end_with(self, last_words: Callable[[GenerationEnd], bytes]) -> None:
        self._generation.last_words = last_words

    @property
    def status(self) -> int | None:
        head = self._generation.head
        return head.status if head is not None else None

    @property
    def event_stream(self) -> bool:
        head = self._generation.head
        return head is not None and head.event_stream

    @property
    def ended(self) -> bool:
        return self._generation.end is not None

    def start(self, status: int, headers: Headers) -> None:
        self._generation.begin(GenerationHead(status, headers))

    def push(self, data: bytes) -> bool:
        """An event stream is taken at once, even without a reader; every push ends at the end of a record."""
        self.sent += len(data)
        if self._generation.kept:
            self._generation.keep(data)
            return True
        if (room := self._generation.push(data)) is not None:
            return room
        self._pushed += data
        return not self._pushed

    async def flush(self) -> None:
        pushed, self._pushed = self._pushed, b""
        if pushed:
            await self._generation.hand(pushed)
        if self._finished:
            self._generation.finish(GenerationEnd.DONE)

    async def write(self, data: bytes) -> None:
        if not self.push(data):
            await self.flush()

    def finish(self) -> bool:
        self._finished = True
        if not self._pushed:
            self._generation.finish(GenerationEnd.DONE)
        return not self._pushed

    async def end(self) -> None:
        if not self.finish():
            await self.flush()

    def abort(self) -> None:
        self._generation.finish(GenerationEnd.BROKEN)


class FirstReader:
    """The first reader of a generation, without a task: a `TasklessReader`, given what is new at once.

    Where its client is full, it falls behind, and is no longer given anything. When the client has taken all, it reads
    on from the ring until it has caught up. A client that falls behind the ring gets a record that says so.
    """

    def __init__(
        self,
        generation: Generation,
        sink: ReaderSink,
        when_drained: Callable[[Callable[[], None]], None],
        over: Callable[[GenerationEnd | None], None],
    ) -> None:
        """``when_drained`` calls something once the client has taken all. ``over`` is called once: None if the client
        has the whole answer, or has been cut off; else how the generation ended before it began.
        """
        self.sink = sink
        self._generation = generation
        self._when_drained = when_drained
        self._over = over
        self._reader = generation.reader(0)
        self._behind = False

    def began(self, head: GenerationHead, *, kept: bool) -> None:
        self.sink.start(head.status, head.headers)
        if kept:
            self._generation.live(self._give)

    def ended(self) -> None:
        if not self._behind:
            self._finish()

    def _give(self, data: bytes) -> bool:
        reader = self._reader
        reader.offset += len(data)
        reader.last = data
        if self.sink.push(data):
            return True
        self._behind = True
        self._when_drained(self._catch_up)
        return False

    def _catch_up(self) -> None:
        # The last, empty look and the call of `live` below happen in one step, without an await. So nothing is appended
        # between them, and no byte is lost or sent twice.
        while data := self._reader.take():
            if not self.sink.push(data):
                self._when_drained(self._catch_up)
                return
        self._behind = False
        if self._generation.end is not None or self._reader.overtaken:
            self._finish()
        else:
            self._generation.live(self._give)

    def _finish(self) -> None:
        generation = self._generation
        if generation.head is None:
            self._over(generation.end)
            return
        last = self._reader.closing()
        generation.unfollow()
        if last is None:
            self.sink.abort()
        elif last:
            self.sink.push(last)
        if last is None or self.sink.finish():
            self._over(None)
        else:
            self._when_drained(partial(self._over, None))
