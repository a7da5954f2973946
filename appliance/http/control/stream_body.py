"""The answer that is a stream from an offset on, of a generation or of a run."""

from __future__ import annotations

import re
from typing import Protocol

from appliance.core.answers.ring import Numbered
from appliance.errors import BadRequest, UpstreamFailed
from appliance.http.control.answers import Pieces
from appliance.replay.generation import BROKE_OFF

UINT64 = 1 << 64
_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20})(?!\d)", re.ASCII)


class StreamReader(Protocol):
    """Gives the bytes of a stream; see `GenerationReader`."""

    async def receive(self) -> bytes: ...

    def closing(self) -> bytes | None: ...


class StreamBody(Pieces):
    """One reader's bytes until the generation has ended or the client leaves."""

    def __init__(self, reader: StreamReader | None, offset: int, *, numbered: bool) -> None:
        self._reader = reader
        self._numbers = Numbered(offset) if numbered else None
        self._over = False

    async def __anext__(self) -> bytes:
        while self._reader is not None and (data := await self._reader.receive()):
            if self._numbers is not None:
                data = self._numbers.feed(data)
            if data:
                return data
        if self._over or self._reader is None:
            raise StopAsyncIteration
        self._over = True
        if (last := self._reader.closing()) is None:
            raise UpstreamFailed("the stream", BROKE_OFF)  # the connection breaks, as nothing may follow
        if self._numbers is not None:
            last = self._numbers.rest() + last
        if last:
            return last
        raise StopAsyncIteration


def read_offset(last_event_id: str | None, asked: str | None) -> int:
    """Return the offset to begin at, read as in llama-server: a negative number is a huge one. Raises BadRequest."""
    text = last_event_id or asked
    if text is None:
        return 0
    match = _NUMBER.match(text)
    number = int(match[2]) if match is not None else UINT64
    if match is None or number >= UINT64:
        raise BadRequest("Invalid 'from' offset", param="from")
    return UINT64 - number if match[1] == "-" and number else number
