"""The owner of all generations that outlive their requests: by conversation id, one at a time, within limits."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from msgspec import Struct

from appliance.core.answers.ring import Ring
from appliance.core.headers import EVENTS
from appliance.errors import Busy, ShuttingDown, UsageError
from appliance.features.streams.files import RETRY, StoredStream, StreamFiles, check_folder, open_stream_files
from appliance.features.streams.ids import ConversationIds
from appliance.features.streams.keeping import KeptStreams
from appliance.features.streams.keys import StreamsConfig
from appliance.replay.generation import LINES, Audience, Generation, GenerationEnd, GenerationHead, never, nothing
from appliance.trio_parts import Changed, beside, persist

MAX_LIVE = 1000  # number of running generations; each may hold a request's body, and its client need not be there


class StreamStatus(Struct, frozen=True):
    """The facts about one stream; times are Unix seconds, 0 for a time that has not come."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


def status_of(generation: Generation) -> StreamStatus:
    begun, ended, done = int(generation.started_at), int(generation.completed_at), generation.end is not None
    return StreamStatus(generation.conversation, done, generation.ring.total, begun, ended)


Work = Callable[[], Awaitable[None]]


class Streams:
    """Made by `open_streams`; the `Keeper` of its generations. Every method is atomic."""

    def __init__(
        self,
        settings: StreamsConfig,
        nursery: trio.Nursery,
        files: StreamFiles | None,
        audiences: Sequence[Audience],
        max_live: int,
    ) -> None:
        self.ids = ConversationIds(self._end_stream)
        self.kept = KeptStreams(settings, files, self._lose)
        self.grew = self.kept.grew  # of the `Keeper`: nothing stands between a chunk and this
        self._nursery = nursery
        self._audiences = audiences
        self._max_live = max_live
        self._live = 0
        self._ended = Changed()
        self._interrupted: dict[Generation, bytes] = {}  # all that are there, with the record for the program's end

    def open_generation(
        self, name: str, *, streams: bool = True, loading: Callable[[], bool] = never, interrupted: bytes = b""
    ) -> Generation:
        """Make a generation, which the caller fills, and ends with `close_generation` or `start_work`.

        The caller calls `Generation.pass_on`, and may leave that, or `Generation.follow`. A stream of the same id is
        ended as soon as this one has a good answer, or none within a moment; a refusal leaves it alone. ``streams``:
        the client asked for a stream, so the work continues without its client. ``loading`` says whether the model is
        on its way; ``interrupted`` is the record that ends the stream if the program ends first. `name_of` makes the
        name. Raises Busy and ShuttingDown.
        """
        if self._nursery.cancel_scope.cancel_called:
            raise ShuttingDown
        if self._live >= self._max_live:
            raise Busy(f"{self._max_live} generations with an X-Conversation-Id are under way; try again later")
        ring = Ring(self.kept.settings.max_bytes)
        generation = Generation(name, time.time(), ring, self, streams=streams, loading=loading)
        generation.last_words = lambda _: interrupted
        self._interrupted[generation] = interrupted
        self.ids.assign(generation)
        self._live += 1
        for audience in self._audiences:
            audience.begun(generation)
        return generation

    def start_work(self, generation: Generation, work: Work) -> None:
        """Do ``work`` for it in a task, and close it then. ``work`` reports its errors to its sink, and raises none."""
        self._nursery.start_soon(self._work, generation, work)

    def close_generation(self, generation: Generation, end: GenerationEnd = GenerationEnd.GIVEN_UP) -> None:
        """Its work is over. ``end`` is how it ends if it has not."""
        self._live -= 1
        self._ended.wake()
        if generation.end is None:
            generation.cut(end)
        if generation not in self.kept:
            self._lose(generation)

    def lookup(self, names: Iterable[str]) -> list[StreamStatus]:
        return [status_of(stream) for stream in self.ids.streams_of(names)]

    def end_generations(self) -> None:
        """End what runs, with the record that says so."""
        for generation in [each for each in self._interrupted if each.end is None]:
            generation.cut(GenerationEnd.SHUT_DOWN)

    async def wait_ended(self) -> None:
        """Wait until no generation runs, with or without its client."""
        while self._live:
            await self._ended.wait()

    def adopt(self, settings: StreamsConfig) -> None:
        """Follow these settings from now on; the folder of files does not change."""
        self.kept.settings = settings

    def adopt_stored(self, stored: Sequence[StoredStream]) -> None:
        """Take over an earlier run's streams on disk, oldest first. They are kept as long as if they had ended now.

        The wall clock is not asked: it may have been wrong when they ended.
        """
        adopted = set[str]()
        for found in stored:
            about, name = found.about, found.about.conversation
            before = self.ids.current_of(name)
            if before is not None and name not in adopted:
                self.kept.discard_file(found.key)  # this run has a stream of that id already
                continue
            if before is not None:
                self.kept.drop(before)
            adopted.add(name)
            ring = Ring(self.kept.settings.max_bytes, about.dropped)
            ring.append(found.data)
            ring.finalize()
            generation = Generation(name, about.started_at, ring, self)
            generation.head = GenerationHead(200, ((b"Content-Type", LINES if about.lines else EVENTS),))
            generation.interrupted_at = about.interrupted_at
            generation.end, generation.completed_at = GenerationEnd.DONE, found.completed_at
            self._interrupted[generation] = b""
            self.ids.assign(generation)
            self.kept.keep_stored(generation, found.key)
            for audience in self._audiences:
                audience.begun(generation)
        self.kept.make_room()

    def began(self, generation: Generation) -> None:
        # Three outcomes. A refusal gives the id back to the stream before. A good answer that is not a stream takes the
        # id over, and is forgotten, for nothing of it can be resumed. A stream takes it over and is kept.
        if generation.refused:
            self.ids.give_back(generation)
            return
        self.ids.take_over(generation)
        if generation.kept:
            self.kept.keep(generation, self._interrupted[generation])
        else:
            self.ids.forget(generation)

    def ended(self, generation: Generation) -> None:
        generation.completed_at = time.time()
        if generation in self.kept:
            self.kept.finish(generation)
        elif generation.head is None:
            self.ids.give_back(generation)

    async def _work(self, generation: Generation, work: Work) -> None:
        scope, end = trio.CancelScope(), GenerationEnd.SHUT_DOWN
        generation.cancel = scope.cancel
        try:
            with scope:
                if generation.end is not None:
                    scope.cancel()  # before this task began
                # `Generation.cancel` is caught by this scope, and then the end is GIVEN_UP. Only a cancellation from
                # outside, which is the end of the program, leaves SHUT_DOWN in place.
                await work()
            end = GenerationEnd.GIVEN_UP
        finally:
            generation.cancel = nothing
            self.close_generation(generation, end)

    def _end_stream(self, generation: Generation, end: GenerationEnd) -> None:
        """End it for good, with its last words."""
        generation.cut(end)
        self.kept.drop(generation)

    def _lose(self, generation: Generation) -> None:
        """It is over, and not kept."""
        self.ids.forget(generation)
        self._interrupted.pop(generation, None)
        for audience in self._audiences:
            audience.forget(generation)


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
        nursery.start_soon(streams.kept.expire)
        nursery.start_soon(streams.ids.take_over_in_time)
        try:
            yield streams
        finally:
            streams.end_generations()
