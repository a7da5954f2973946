"""Server-sent events with an ``id:`` each: the offset of the record's end, where a reader resumes."""

from __future__ import annotations

import re

from appliance.core.sse import MAX_RECORD

_END = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")


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
            numbered.append(self._one(bytes(self._held[start : end.end()]), self._offset + end.end()))
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

    def _one(self, record: bytes, offset: int) -> bytes:
        return b"id: %d\n%b" % (offset, record)
