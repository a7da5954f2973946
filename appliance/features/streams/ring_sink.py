"""The sink that the work of a generation writes into."""

from __future__ import annotations

from collections.abc import Callable

from appliance.core.headers import Headers
from appliance.replay.generation import Generation, GenerationEnd, GenerationHead


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
        """See `Generation.last_words`."""
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
