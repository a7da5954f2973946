"""Reads an answer's bytes as they pass, for what the answer cost and for what an error says; holds no answer.

Of an event stream only the current line is held, and a line is decoded only when it has the name of a member that
matters in front of an object. Of a JSON body the beginning and the end are held, as they came: every engine writes
what an answer cost first or last in it, and nothing is looked at before the answer is over.
"""

from __future__ import annotations

import re
from collections import deque
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct

from appliance.core.bodies.http_message import ContentDecoder
from appliance.core.records.usage import Ledger, Loose, Report, Usage, decode_loosely, read_last_report, read_report

MAX_LINE = 1 << 20
"""Bytes of one line of a stream; a longer one is skipped. A record with usage has a few hundred bytes."""

MAX_HELD = 64 << 10
"""Bytes held of the beginning of a long JSON body, and as many of its end (and what else came in the same piece)."""

MAX_ERROR = 64 << 10
"""Bytes of an error's body that its message is looked for in."""

MAX_MESSAGE = 500
"""Characters of an error's message that a row keeps."""

_NAMES = (b'"usage"', b'"timings"', b'"metrics"')
_OBJECT = re.compile(rb"\s*+:\s*+\{")

_TRIES = 8
"""How many places where a name stands are tried: all but one are inside something else, or there is none at all."""


def _first_mark(text: bytes, end: int) -> int:
    """Return the place before ``end`` where the first of the names stands in front of an object; -1 if none does.

    The names are searched for one by one: a regular expression for all three is as slow for text without any, and far
    slower for an engine that writes ``"usage":null`` into every record.
    """
    first = -1
    for name in _NAMES:
        at = text.find(name, 0, end)
        while at >= 0 and not _OBJECT.match(text, at + len(name), end):
            at = text.find(name, at + len(name), end)
        if at >= 0:
            first = end = at  # of interest is only what stands before it
    return first


class _Reader(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    def end(self) -> None: ...


class _StreamReader:
    """An event stream, line by line: every engine writes a record's JSON on one data line, and so does llama-swap
    read it. Lines end with LF or CR LF; no engine uses a bare CR."""

    __slots__ = ("_held", "_ledger", "_passing_over")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held = bytearray()  # the beginning of a line
        self._passing_over = False  # the current line is too long

    def feed(self, chunk: bytes) -> None:
        if self._held or self._passing_over:
            end = chunk.find(b"\n") + 1
            if not end:
                self._hold(chunk)
                return
            self._hold(chunk[: end - 1])
            self.end()
            chunk = chunk[end:]
        end = len(chunk) if chunk.endswith(b"\n") else chunk.rfind(b"\n") + 1
        if (mark := _first_mark(chunk, end)) >= 0:
            begin = chunk.rfind(b"\n", 0, mark) + 1
            self._lines(chunk[begin:end])
        if end < len(chunk):
            self._hold(chunk[end:])

    def _lines(self, text: bytes) -> None:
        """Read the lines for reports. llama-server may write timings into every record, and only the last count: the
        search goes backwards and ends at the first hit. Usage comes in parts, so every line is read for it."""
        lines = text.split(b"\n")
        if b'"usage"' in text or b'"metrics"' in text:
            for line in lines:
                self._line(line)
        else:
            any(map(self._line, reversed(lines)))

    def _hold(self, part: bytes) -> None:
        if not self._passing_over:
            self._held += part
            self._passing_over = len(self._held) > MAX_LINE

    def end(self) -> None:
        """The line that is held has ended."""
        if not self._passing_over:
            self._line(bytes(self._held))
        self._held.clear()
        self._passing_over = False

    def _line(self, line: bytes) -> bool:
        """True for one with timings."""
        if len(line) <= MAX_LINE and line.startswith(b"data:") and _first_mark(line, len(line)) >= 0:
            return self._ledger.record(line[5:])
        return False


class _BodyReader:
    """A JSON body. /infill answers an array, and what it cost is in its last element."""

    __slots__ = ("_beginning", "_last", "_ledger", "_of_last", "_size")

    def __init__(self, ledger: Ledger, *, of_last: bool) -> None:
        self._ledger = ledger
        self._of_last = of_last
        self._beginning = b""
        self._last: deque[bytes] = deque()
        self._size = 0  # of the last pieces

    def feed(self, chunk: bytes) -> None:
        self._last.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._last[0]) >= 2 * MAX_HELD:
            gone = self._last.popleft()
            self._size -= len(gone)
            if len(self._beginning) < MAX_HELD:
                self._beginning += gone[: MAX_HELD - len(self._beginning)]

    def end(self) -> None:
        """The body is over, in whatever way."""
        last = b"".join(self._last)
        if not self._beginning and len(last) <= 2 * MAX_HELD:
            report = read_last_report(last) if self._of_last else None
            if (report := report or read_report(last)) is not None:
                self._ledger.add(report)
                return
        # Too long to be read as a whole, or no JSON as far as can be told: an engine may write NaN into it.
        self._read_beginning(self._beginning or last[:MAX_HELD])
        self._read_end(last[-MAX_HELD:].rstrip())

    def _read_beginning(self, text: bytes) -> None:
        """Members of the outermost object: what stands before one is an object, once it is closed."""
        if not text.lstrip().startswith(b"{"):
            return
        for name in _NAMES:
            at = -1
            for _ in range(_TRIES):
                if (at := text.find(name, at + 1)) < 0:
                    break
                before = text[:at].rstrip().removesuffix(b",")
                if read_report(before + b"}") is not None and (report := _value(text, at)) is not None:
                    self._ledger.add(report)
                    break

    def _read_end(self, text: bytes) -> None:
        """Members of the outermost object: with what follows one, up to the end, it is an object, once it is opened.

        An escaped quote is the only other thing that a name with quotes around it can begin with.
        """
        if self._of_last and text.endswith(b"]"):
            text = text[:-1]
        for name in _NAMES:
            at = len(text)
            for _ in range(_TRIES):
                if (at := text.rfind(name, 0, at)) < 0:
                    break
                if not text.endswith(b"\\", 0, at) and (report := read_report(b"{" + text[at:])) is not None:
                    self._ledger.add(report)
                    break


def _value(text: bytes, at: int) -> Report | None:
    """Return the report in the member at ``at``, an object with few others inside; None if it cannot be read."""
    end = at
    for _ in range(_TRIES):
        if (end := text.find(b"}", end) + 1) == 0:
            return None
        if (report := read_report(b"{" + text[at:end] + b"}")) is not None:
            return report
    return None


class TokenCounter:
    """Counts one answer with status 200. Feed it every byte on its way to the client; no input makes it raise.

    ``path`` is the model route; ``streaming`` says that the answer's Content-Type is text/event-stream. What cannot
    be decoded, or is not JSON, leaves everything unknown.
    """

    __slots__ = ("_decoder", "_ledger", "_reader")

    def __init__(self, path: str, *, streaming: bool, content_encoding: str | None = None) -> None:
        self._ledger = Ledger()
        self._reader: _Reader
        if streaming:
            self._reader = _StreamReader(self._ledger)
        else:
            self._reader = _BodyReader(self._ledger, of_last=path.rstrip("/").endswith("/infill"))
        self._decoder = ContentDecoder(content_encoding) if content_encoding else None

    def feed(self, chunk: bytes) -> None:
        if self._decoder is None:
            self._reader.feed(chunk)
            return
        for piece in self._decoder.feed(chunk):
            self._reader.feed(piece)

    def end(self) -> Usage:
        """The answer is over, in whatever way."""
        self._reader.end()
        return self._ledger.balance()


def count_whole(path: str, body: bytes) -> Usage:
    """Return the result of `TokenCounter` for a whole body without a coding. Most are, and this costs a third."""
    if len(body) <= 2 * MAX_HELD and (report := read_report(body)) is not None:
        ledger = Ledger()
        ledger.add(report)
        return ledger.balance()
    counter = TokenCounter(path, streaming=False)
    counter.feed(body)
    return counter.end()


class ErrorText:
    """The message for the log in an error's body, of which it holds at most MAX_ERROR bytes."""

    def __init__(self, content_encoding: str | None = None) -> None:
        self._decoder = ContentDecoder(content_encoding)
        self._held = bytearray()

    def feed(self, chunk: bytes) -> None:
        if len(self._held) > MAX_ERROR:
            return
        for piece in self._decoder.feed(chunk):
            self._held += piece[: MAX_ERROR + 1 - len(self._held)]

    def end(self, status: int) -> str:
        """Return the engine's message, or the name of the status if it has no readable one."""
        said = decode_loosely(bytes(self._held), _ErrorBody) if len(self._held) <= MAX_ERROR else None
        return (_message(said) if said else "") or _status_text(status)


class _ErrorBody(Struct):
    error: Loose = None
    message: Loose = None
    detail: Loose = None


def _message(body: _ErrorBody) -> str:
    nested = body.error.get("message") if isinstance(body.error, dict) else None
    for said in (nested, body.error, body.message, body.detail):
        if isinstance(said, str) and (text := said.strip()):
            return text[:MAX_MESSAGE]
    return ""


def _status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
