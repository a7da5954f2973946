"""What happens in one run, as a stream of server-sent events that can be read from any offset that is still held."""

from __future__ import annotations

import msgspec

from appliance.core.ring import Ring
from appliance.core.sse import Event, encode
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
    """The events of one run, the newest ``limit`` bytes of them; any number of readers, none of which holds it up."""

    def __init__(self, run_id: str, began: float, limit: int) -> None:
        self._generation = Generation(run_id, began, Ring(limit), _Nobody())
        self._generation.head = Head(200, ((b"Content-Type", EVENTS),))

    def say(self, name: str, value: object) -> None:
        self._generation.keep(encode(Event(msgspec.json.encode(value).decode(), name)))

    def end(self) -> None:
        """Nothing is said any more."""
        self._generation.finish(End.DONE)

    @property
    def dropped(self) -> int:
        """The first offset that is still held."""
        return self._generation.ring.dropped

    def reader(self, offset: int) -> Reader:
        return self._generation.reader(offset)
