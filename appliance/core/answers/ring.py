"""The newest bytes of a stream, addressed by their offset from its beginning; and events that carry such offsets as
ids.

Bytes are copied into blocks of one size as they come, so that a place is found by arithmetic and small chunks cost no
object each; a full block never changes again, and readers get views of it. An event's ``id:`` is the offset of its
end, where a reader resumes.
"""

from __future__ import annotations

import re
from collections import deque

from msgspec import Struct

from appliance.core.bodies.sse import MAX_RECORD

BLOCK = 1 << 16
"""Bytes in a block. The ring uses at most two blocks more memory than its limit."""
_END = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")


class Gap(Struct, frozen=True):
    """The requested bytes are gone; ``oldest`` is the first offset that is still held."""

    oldest: int


class Ring:
    """Keeps the last ``limit`` bytes; older ones are dropped. ``total`` and ``dropped`` are offsets."""

    def __init__(self, limit: int, dropped: int = 0) -> None:
        self.limit = limit
        self.total = dropped
        self.dropped = dropped
        self.finished = False
        self._blocks: deque[bytes] = deque()
        self._base = dropped  # offset of the first block
        self._last = bytearray()  # the block that is being filled

    @property
    def held(self) -> int:
        return self.total - self.dropped

    def append(self, data: bytes) -> bool:
        """Add a chunk, or its tail if it is too large. False: the ring is finished, and full."""
        if self.finished:
            return False
        self.total += len(data)
        if len(data) >= self.limit:
            self._blocks.clear()
            self._last.clear()
            self.dropped = self._base = self.total - self.limit
            data = data[len(data) - self.limit :]
        self._last += data
        while len(self._last) >= BLOCK:
            self._blocks.append(bytes(self._last[:BLOCK]))
            del self._last[:BLOCK]
        if self.held > self.limit:
            self.shrink(self.limit)
        return True

    def shrink(self, size: int) -> None:
        """Drop the oldest bytes until at most ``size`` are held."""
        self.dropped = max(self.dropped, self.total - size)
        while self._blocks and self._base + BLOCK <= self.dropped:
            self._blocks.popleft()
            self._base += BLOCK

    def since(self, offset: int, most: int | None = None) -> list[memoryview] | Gap:
        """Return the bytes from ``offset`` on, up to ``most`` of them; nothing for an offset that has not come yet."""
        if offset < self.dropped:
            return Gap(self.dropped)
        end = self.total if most is None else min(self.total, offset + most)
        views: list[memoryview] = []
        while offset < end:
            at, within = divmod(offset - self._base, BLOCK)
            if at < len(self._blocks):
                view = memoryview(self._blocks[at])[within : within + end - offset]
            else:  # a view of the block that is being filled would keep it from growing
                view = memoryview(bytes(self._last[within : within + end - offset]))
            views.append(view)
            offset += len(view)
        return views

    def finalize(self) -> None:
        """Mark the end: nothing is added from now on."""
        self.finished = True


class Numbered:
    """Gives ids to the records of a stream, wherever its bytes are cut. ``offset`` is that of the first byte fed.

    An unfinished record is held until its end arrives, because its id stands in front; one that is too long for that
    goes out without an id. Offsets do not count the ids.
    """

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the records that these bytes complete."""
        searched = max(len(self._held) - 3, 0)
        self._held += data
        numbered: list[bytes] = []
        start = 0
        for end in _END.finditer(self._held, searched):
            numbered.append(b"id: %d\n%b" % (self._offset + end.end(), bytes(self._held[start : end.end()])))
            start = end.end()
        if len(self._held) - start > MAX_RECORD:
            numbered.append(bytes(self._held[start:]))
            start = len(self._held)
        del self._held[:start]
        self._offset += start
        return b"".join(numbered)

    def rest(self) -> bytes:
        """Return the unfinished record, once nothing follows."""
        held, self._held = bytes(self._held), bytearray()
        return held
