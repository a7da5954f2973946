"""Reads an answer's bytes as they pass, for what the answer cost and for what an error says; holds no answer.

Of an event stream only the current line is held, and a line is decoded only when it has the name of a member that
matters in front of an object; of a JSON body only those members are held (``json_members``).
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from appliance.core.content_coding import ContentDecoder
from appliance.core.json_members import MemberScanner
from appliance.core.usage import Ledger, Loose, Usage, decode_loosely

MAX_LINE = 1 << 20
"""Bytes of one line of a stream; a longer one is passed over. What carries usage is a few hundred bytes long."""

MAX_HELD = 64 << 10
"""Bytes of a JSON body that are looked through before they are read."""

MAX_ERROR = 64 << 10
"""Bytes of an error's body that its message is looked for in."""

MAX_MESSAGE = 500
"""Characters of an error's message that a row keeps."""

_MARK = re.compile(rb'"(?:usage|timings|metrics)"\s*+:\s*+\{')
_MEMBERS = (b"usage", b"timings", b"metrics")


class _Reader(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    def end(self) -> None: ...


class _StreamReader:
    """An event stream, line by line: every engine writes a record's JSON on one data line, and so does llama-swap
    read it. Lines end with LF or CR LF; no engine uses a bare CR."""

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
        if (mark := _MARK.search(chunk, 0, end)) is not None:
            begin = chunk.rfind(b"\n", 0, mark.start()) + 1
            for line in chunk[begin:end].split(b"\n"):
                self._line(line)
        if end < len(chunk):
            self._hold(chunk[end:])

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

    def _line(self, line: bytes) -> None:
        if len(line) <= MAX_LINE and line.startswith(b"data:") and _MARK.search(line):
            self._ledger.record(line[5:])


class _Whole(Struct):
    usage: Raw = Raw(b"")
    timings: Raw = Raw(b"")
    metrics: Raw = Raw(b"")


_WHOLE = msgspec.json.Decoder(_Whole)


class _BodyReader:
    """A JSON body. /infill answers an array, and what it cost is in its last element.

    Most bodies come in one small piece: that one is held, and decoded at the end; where it has nothing of interest it
    is not read at all.
    """

    def __init__(self, ledger: Ledger, of_last: bool) -> None:
        self._ledger = ledger
        self._of_last = of_last
        self._scanner: MemberScanner | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        if self._scanner is None:
            if not self._held and len(chunk) <= MAX_HELD:
                self._held = chunk
                return
            self._scan().feed(self._held)
            self._held = b""
        self._scan().feed(chunk)

    def end(self) -> None:
        if self._held and _MARK.search(self._held):
            try:
                whole = _WHOLE.decode(self._held)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._scan().feed(self._held)
            else:
                self._tell(bytes(whole.usage), bytes(whole.timings), bytes(whole.metrics))
        if self._scanner is not None:
            found = self._scanner.found
            self._tell(found.get(b"usage", b""), found.get(b"timings", b""), found.get(b"metrics", b""))

    def _tell(self, usage: bytes, timings: bytes, metrics: bytes) -> None:
        for raw, take in (
            (usage, self._ledger.usage),
            (timings, self._ledger.timings),
            (metrics, self._ledger.metrics),
        ):
            if raw:
                take(raw)

    def _scan(self) -> MemberScanner:
        if self._scanner is None:
            self._scanner = MemberScanner(_MEMBERS, of_last=self._of_last)
        return self._scanner


class TokenCounter:
    """Counts one answer with status 200. Feed it every byte on its way to the client; no input makes it raise.

    ``path`` is the model route; ``streaming`` says that the answer's Content-Type is text/event-stream. What cannot
    be decoded, or is not JSON, leaves everything unknown.
    """

    def __init__(self, path: str, *, streaming: bool, content_encoding: str | None = None) -> None:
        self._ledger = Ledger()
        self._reader: _Reader
        if streaming:
            self._reader = _StreamReader(self._ledger)
        else:
            self._reader = _BodyReader(self._ledger, of_last=path.rstrip("/").endswith("/infill"))
        self._decoder = ContentDecoder(content_encoding)

    def feed(self, chunk: bytes) -> None:
        if self._decoder.plain:
            self._reader.feed(chunk)
            return
        for piece in self._decoder.feed(chunk):
            self._reader.feed(piece)

    def end(self) -> Usage:
        """The answer is over, in whatever way."""
        self._reader.end()
        return self._ledger.balance()


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
        """What the engine says, or the name of the status where it says nothing that can be read."""
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
