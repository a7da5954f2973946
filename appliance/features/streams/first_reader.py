"""The first reader of a generation, without a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.replay.generation import Generation, GenerationEnd, GenerationHead, ReaderSink


class FirstReader:
    """A `TasklessReader`, given what is new at once.

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
