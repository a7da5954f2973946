"""Server-sent events as bytes: decoding, encoding, and cutting a stream only where a record ends.

Format: WHATWG HTML, section 9.2 "Server-sent events". No sockets, no clock: bytes in, values out.
"""

from __future__ import annotations

import codecs
import re

from msgspec import Struct

MAX_RECORD = 4 << 20
"""Largest record held while its end is awaited. A whole completion answered as one record is well below a megabyte."""

PING = b": ping\n\n"
"""A comment: every reader must ignore it, and every proxy sees traffic."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_RECORD_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class RecordTooLong(ValueError):
    """A record that grew past the limit without ending."""


class Event(Struct, frozen=True):
    """One dispatched event. ``name`` is None where the record had no ``event:`` line."""

    data: str
    name: str | None = None
    id: str | None = None


def encode(event: Event) -> bytes:
    """One record. A data line ends at any of the three line ends, so each becomes its own ``data:`` line."""
    lines = [f"event: {event.name}"] if event.name is not None else []
    if event.id is not None:
        lines.append(f"id: {event.id}")
    lines.extend(f"data: {line}" for line in _LINE_END.split(event.data))
    return ("\n".join(lines) + "\n\n").encode()


class Decoder:
    """Bytes in, events out, however the bytes are cut. Bytes that are not UTF-8 become U+FFFD, as in a browser.

    A record that the stream ends in the middle of is not dispatched, as the standard says.
    """

    def __init__(self, limit: int = MAX_RECORD) -> None:
        self._limit = limit
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        self._held = 0
        self._first = True
        self._after_cr = False
        self._data: list[str] = []
        self._name: str | None = None
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete. Raises RecordTooLong; the decoder is of no use after that."""
        text = self._text.decode(chunk)
        if not text:
            return []
        if self._first:
            self._first = False
            text = text.removeprefix("\ufeff")
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix("\n")
        self._after_cr = text.endswith("\r")
        *ended, rest = _LINE_END.split(text)
        events: list[Event] = []
        for part in ended:
            self._line.append(part)
            line = "".join(self._line)
            self._line.clear()
            if line:
                self._take(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
            self._hold(len(rest))
        return events

    def _take(self, line: str) -> None:
        self._hold(len(line))
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> Event | None:
        data, name, self._data, self._name, self._held = self._data, self._name, [], None, 0
        return Event("\n".join(data), name or None, self._id) if data else None

    def _hold(self, characters: int) -> None:
        self._held += characters
        if self._held > self._limit:
            raise RecordTooLong(f"a server-sent event is longer than {self._limit} characters")


class WholeRecords:
    """Passes a stream on unchanged, but only up to the last complete record.

    What it holds back no reader could use yet; when the sender dies in the middle of a record, the torn part can be
    dropped and an error record put in its place. A record longer than ``limit`` is passed on as it comes.
    """

    def __init__(self, limit: int = MAX_RECORD) -> None:
        self._limit = limit
        self._held = b""
        self.torn = False
        """Part of a record has been passed on: the stream cannot be continued with another record."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may leave now, possibly none."""
        if not self._held and chunk.endswith(b"\n\n"):
            self.torn = False
            return chunk
        whole = self._held + chunk
        end = max(whole.rfind(mark) + len(mark) if mark in whole else 0 for mark in _RECORD_ENDS)
        if end == 0 and (self.torn or len(whole) > self._limit):
            self.torn, self._held = True, b""
            return whole
        self._held = whole[end:]
        if end:
            self.torn = False
        return whole[:end]

    def rest(self) -> bytes:
        """What is still held when the stream has ended in good order."""
        held, self._held = self._held, b""
        return held
