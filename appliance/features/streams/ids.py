"""The meaning of conversation ids: each has one generation, and while that has no answer yet, the stream before it.

Below are the streams as their readers ask for them, by name and from an offset on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

import trio

from appliance.core.headers import EVENTS
from appliance.errors import BadRequest, Busy, NotFound
from appliance.replay.generation import OF_HOLDER, Generation, GenerationEnd, GenerationReader
from appliance.trio_parts import Changed

TAKE_OVER_AFTER = 0.25
"""Seconds in which a request may still be refused without ending the stream that its id had before."""


def name_of(conversation: str, holder: str) -> str:
    """Return the name of a conversation among those of all keys: the holder of one finds none of another's.

    ``holder`` is empty where there are no keys, and then the name is the id.
    """
    return f"{holder}{OF_HOLDER}{conversation}" if holder else conversation


def meant(names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Return the known names that these mean: themselves, or else those that begin with one and ``::``."""
    by_prefix: dict[str, list[str]] = {}
    for conversation in known:
        at = conversation.find("::")
        while at > 0:
            by_prefix.setdefault(conversation[:at], []).append(conversation)
            at = conversation.find("::", at + 1)
    for wanted in names:
        yield from (wanted,) if wanted in known else by_prefix.get(wanted, ())


class ConversationIds:
    """Knows which generation a name means.

    A name has a current generation and at most one before it. The earlier stream stays readable until the new one has a
    good head: a client that asks again and is refused keeps what it had. A current one that is not kept has no head
    yet; it is replaced at once, and the new one inherits what was before it. Two requests that race can therefore never
    lose the last stream that was good.
    """

    def __init__(self, end_stream: Callable[[Generation, GenerationEnd], None]) -> None:
        """``end_stream`` ends a stream for good; it calls `forget`."""
        self._end_stream = end_stream
        self._current: dict[str, Generation] = {}
        self._before: dict[Generation, Generation] = {}  # what gets the name back if the request is refused
        self._taking_over: deque[tuple[float, Generation]] = deque()
        self._takes_over = Changed()

    def assign(self, generation: Generation) -> None:
        """Its name means this generation from now on."""
        before = current = self._current.get(generation.name)
        self._current[generation.name] = generation
        if current is not None and not current.kept:
            before = self._before.pop(current, None)
            current.cut(GenerationEnd.REPLACED)
        if before is not None:
            self._before[generation] = before
            self._taking_over.append((trio.current_time() + TAKE_OVER_AFTER, generation))
            self._takes_over.wake()

    def take_over(self, generation: Generation) -> None:
        """End the stream that had its name before."""
        if (before := self._before.pop(generation, None)) is not None:
            self._end_stream(before, GenerationEnd.REPLACED)

    def give_back(self, generation: Generation) -> None:
        """It was refused, or is over before it began: its name regains its earlier meaning."""
        before = self._before.pop(generation, None)
        if self._current.get(generation.name) is generation:
            del self._current[generation.name]
            if before is not None:
                self._current[generation.name] = before

    def forget(self, generation: Generation) -> None:
        """Have no name mean it, now or later."""
        current = self._current.get(generation.name)
        if current is generation:
            del self._current[generation.name]
        elif current is not None and self._before.get(current) is generation:
            del self._before[current]

    def stop_stream(self, name: str) -> bool:
        """End what the name means, and what was before it. False: there was nothing."""
        generation = self._current.pop(name, None)
        if generation is None:
            return False
        if (before := self._before.pop(generation, None)) is not None:
            self._end_stream(before, GenerationEnd.STOPPED)
        self._end_stream(generation, GenerationEnd.STOPPED)
        return True

    def current_of(self, name: str) -> Generation | None:
        """Return the generation that has this name now, with a head or without one."""
        return self._current.get(name)

    def stream_of(self, name: str) -> Generation | None:
        """Return the stream of this name; None also for one that has no head yet."""
        current = self._current.get(name)
        return current if current is None or current.kept else self._before.get(current)

    def waiting_of(self, name: str) -> Generation | None:
        """Return the generation of this name that has no head yet."""
        current = self._current.get(name)
        return current if current is not None and current.head is None else None

    def is_loading(self, name: str) -> bool:
        """True if there is nothing to read yet because the model is on its way."""
        waiting = self.waiting_of(name)
        return waiting is not None and waiting not in self._before and waiting.loading()

    def streams_of(self, names: Iterable[str]) -> list[Generation]:
        """Return the streams of these names, or of ``<name>::<anything>``, as often as a name is given."""
        return [
            stream for name in meant(names, self._current) if (stream := self.stream_of(name) or self.waiting_of(name))
        ]

    async def take_over_in_time(self) -> None:
        """End the streams whose name has a newer request that was not refused in time; never returns."""
        while True:
            while not self._taking_over:
                await self._takes_over.wait()
            # All wait equally long, so they are due in the order of their arrival, and one task serves them all.
            at, generation = self._taking_over.popleft()
            await trio.sleep_until(at)
            if self._current.get(generation.name) is generation:
                self.take_over(generation)
            del generation  # or its bytes would stay in memory until the next one comes


async def find_stream(ids: ConversationIds, conversation: str) -> Generation:
    """The stream of this id. One that works on its prompt is waited for; raises Busy while its model is loading.

    Raises NotFound.
    """
    if ids.is_loading(conversation):
        raise Busy("Stream owner model is loading, retry later")
    found = ids.stream_of(conversation)
    if found is None and (waiting := ids.waiting_of(conversation)) is not None:
        await waiting.wait_begun()
        found = ids.stream_of(conversation)
    if found is None:
        raise NotFound("Stream not found or expired")
    return found


def content_type_of(generation: Generation) -> str:
    return (generation.head.content_type if generation.head is not None else EVENTS).decode("latin-1")


def open_reader(generation: Generation, offset: int) -> GenerationReader:
    """Return a reader from this offset on. Raises BadRequest where the bytes behind it are not held any more."""
    reader = generation.reader(offset)
    check_held(reader.offset, generation.ring.dropped)
    return reader


def check_held(offset: int, dropped: int) -> None:
    """Raises BadRequest where the bytes from this offset on are not held any more."""
    if offset < dropped:
        raise BadRequest("Stream offset lost, please restart", param="from")
