"""The streams that are kept: in memory within a size, for a time after their end, and on the disk if that is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from msgspec import Struct

from appliance.features.streams.files import About, StreamFiles
from appliance.features.streams.keys import StreamsConfig
from appliance.replay.generation import Generation

OVERHEAD = 4096  # bytes counted for a stream in addition to its ring


class _Kept(Struct, eq=False):
    key: int | None  # its number among the files
    expires: float = math.inf


class KeptStreams:
    """The room that streams take, and how long each may take it."""

    def __init__(
        self, settings: StreamsConfig, files: StreamFiles | None, dropped: Callable[[Generation], None]
    ) -> None:
        """``dropped`` is called with each stream that is not kept any longer."""
        self.settings = settings
        self.held = 0  # bytes of all streams
        self._files = files
        self._dropped = dropped
        self._kept: dict[Generation, _Kept] = {}  # those that have ended in the order they ended in
        self._wake = trio.Event()

    def __contains__(self, generation: Generation) -> bool:
        return generation in self._kept

    def keep(self, generation: Generation, interrupted: bytes) -> None:
        """Keep a stream that begins. ``interrupted`` is the record that ends it if the program ends first."""
        key = None
        if self._files is not None:
            about = About(conversation=generation.name, started_at=generation.started_at, interrupted=interrupted)
            key = self._files.begin(about)
        self._kept[generation] = _Kept(key)
        self.held += OVERHEAD

    def keep_stored(self, generation: Generation, key: int) -> None:
        """Keep a stream of an earlier run, as long as if it had ended now."""
        self._kept[generation] = _Kept(key)
        self.held += generation.ring.held + OVERHEAD
        self._expire_in_time(generation)

    def grew(self, generation: Generation, data: bytes, held: int) -> None:
        """See `Keeper`."""
        kept = self._kept.get(generation)
        if kept is None:
            return
        self.held += held
        if self._files is not None and kept.key is not None:
            self._files.append(kept.key, data)
        # ``held`` is kept up with each chunk. A sum over all streams would cost more than the chunk itself.
        if self.held > self.settings.max_total:
            self.make_room()

    def finish(self, generation: Generation) -> None:
        """It has ended, and is kept for its time from now on."""
        kept = self._kept[generation] = self._kept.pop(generation)
        if self._files is not None and kept.key is not None:
            self._files.finish(kept.key, generation.completed_at)
        self._expire_in_time(generation)

    def drop(self, generation: Generation) -> None:
        """Keep it no longer, if it is kept."""
        if (kept := self._kept.pop(generation, None)) is not None:
            self.held -= generation.ring.held + OVERHEAD
            if kept.key is not None:
                self.discard_file(kept.key)
            self._dropped(generation)

    def discard_file(self, key: int) -> None:
        if self._files is not None:
            self._files.discard(key)

    def make_room(self) -> None:
        """Drop the oldest ended streams first; then the oldest bytes of the largest."""
        for generation in list(self._kept):
            if self.held <= self.settings.max_total:
                return
            if generation.end is not None:
                self.drop(generation)
        # Only running streams are left. The largest loses its oldest bytes: its work goes on, and only readers that are
        # far behind notice. To end it would take the answer from everyone.
        excess = self.held - self.settings.max_total
        if excess > 0 and self._kept:
            ring = max((generation.ring for generation in self._kept), key=lambda ring: ring.held)
            held = ring.held
            ring.shrink(max(held - excess, 0))
            self.held -= held - ring.held

    async def expire(self) -> None:
        """Drop streams when their time has come; never returns."""
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            for generation in [generation for generation, kept in self._kept.items() if kept.expires <= now]:
                self.drop(generation)
                del generation  # or its bytes would stay in memory until the next one expires
            with trio.move_on_at(min((kept.expires for kept in self._kept.values()), default=math.inf)):
                await self._wake.wait()

    def _expire_in_time(self, generation: Generation) -> None:
        self._kept[generation].expires = trio.current_time() + self.settings.keep
        self._wake.set()
