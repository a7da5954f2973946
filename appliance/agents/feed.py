"""The events of one run as a server-sent stream that can be read from any offset that is still held."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from appliance.core.answers.ring import Ring
from appliance.core.bodies.sse import PING, Event, encode
from appliance.streams.generation import EVENTS, End, Generation, Head, Reader


class _Nobody:
    """The keeper of a generation that only its run holds."""

    def began(self, generation: Generation) -> None:
        pass

    def grew(self, generation: Generation, data: bytes, held: int) -> None:
        pass

    def ended(self, generation: Generation) -> None:
        pass


class Feed:
    """The events of one run, the newest ``limit`` bytes of them; any number of readers, none of which slows it down."""

    def __init__(self, run_id: str, began: float, limit: int) -> None:
        self._generation = Generation(run_id, began, Ring(limit), _Nobody())
        self._generation.head = Head(200, ((b"Content-Type", EVENTS),))

    def say(self, name: str, value: object) -> None:
        self._generation.keep(encode(Event(msgspec.json.encode(value).decode(), name)))

    def ping(self) -> None:
        """Send a comment, which shows proxies that the stream lives. It counts in offsets, because readers read it."""
        self._generation.keep(PING)

    def end(self) -> None:
        """End the stream."""
        self._generation.finish(End.DONE)

    async def wait_said(self) -> None:
        """Wait until something is added, or the stream ends."""
        await self._generation.changed.park()

    @property
    def held(self) -> int:
        """Number of bytes held."""
        return self._generation.ring.held

    @property
    def total(self) -> int:
        """Number of bytes so far."""
        return self._generation.ring.total

    @property
    def dropped(self) -> int:
        """The first offset that is still held."""
        return self._generation.ring.dropped

    def reader(self, offset: int) -> Reader:
        return self._generation.reader(offset)


class RetoldFeed(Feed):
    """The known events of an earlier program's run, written anew: fewer and other bytes than at first.

    An offset is valid here if a record begins there. An offset that only the first stream had gets the last record
    alone.
    """

    def __init__(self, run_id: str, began: float, limit: int, events: Sequence[tuple[str, object]]) -> None:
        super().__init__(run_id, began, limit)
        self._begins: list[int] = []
        for name, value in events:
            self._begins.append(self.total)
            self.say(name, value)
        self.end()

    def reader(self, offset: int) -> Reader:
        known = offset == self.total or offset in self._begins
        return super().reader(offset if known else self._begins[-1])
