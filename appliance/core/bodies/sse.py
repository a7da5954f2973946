"""Server-sent events as bytes: decoding, encoding, and cutting a stream only where a record ends.

Format: WHATWG HTML, section 9.2 "Server-sent events". No sockets, no clock: bytes in, values out.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum, auto

import msgspec
from msgspec import Struct

MAX_RECORD = 4 << 20
"""Largest record that is held while its end is awaited. A whole completion in one record is well below a megabyte."""

PING = b": ping\n\n"
"""A comment: every reader must ignore it, and every proxy sees traffic."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_LAST_WORDS = re.compile(
    rb"(?m:^)(?:data: ?\[DONE\]|event: ?error|error:)"
    rb"|\"(?:finish_reason|stop_reason)\": ?\"|\"stop\": ?true|\"error\": ?[{\"]"
    rb"|\"type\": ?\"(?:message_stop|response\.(?:completed|incomplete|failed)|error)\""
)
"""The words at the end of an answer, in any dialect. In a text the quotes would have backslashes."""
_RECORD_ENDS = (b"\n\n", b"\n\r\n", b"\n\r", b"\r\r")
"""An empty line after any of the three line ends; the longer marks end in one of these."""


class Dialect(Enum):
    """The form of an error record that a stream's readers expect."""

    OPENAI = auto()
    """OpenAI chat and completions, llama.cpp's own routes."""
    RESPONSES = auto()
    ANTHROPIC = auto()
    OLLAMA = auto()
    """Lines of JSON, and no server-sent events."""


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's types of errors by status, https://docs.anthropic.com/en/api/errors; all others are ``api_error``."""


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """The ``error`` object of an answer. ``code`` is the HTTP status, ``reason`` the word for machines."""

    message: str
    type: str
    code: int
    param: str | None = None
    reason: str


class RecordTooLong(ValueError):
    """A record that grew past the limit without ending."""


class SseEvent(Struct, frozen=True):
    """One dispatched event. ``name`` is None where the record had no ``event:`` line."""

    data: str
    name: str | None = None
    id: str | None = None


def encode(event: SseEvent) -> bytes:
    """Encode one record. A data line ends at any of the three line ends, so each becomes its own ``data:`` line."""
    lines = [f"event: {event.name}"] if event.name is not None else []
    if event.id is not None:
        lines.append(f"id: {event.id}")
    lines.extend(f"data: {line}" for line in _LINE_END.split(event.data))
    return ("\n".join(lines) + "\n\n").encode()


def error_record(dialect: Dialect, error: ErrorInfo) -> bytes:
    """Return the record that ends a broken stream; the route's official client makes an exception of it."""
    match dialect:
        case Dialect.OPENAI:
            return encode(SseEvent(_json({"error": error})))
        case Dialect.ANTHROPIC:
            return encode(SseEvent(_json({"type": "error", "error": error}), "error"))
        case Dialect.OLLAMA:
            return f"{_json({'error': error.message})}\n".encode()
        case Dialect.RESPONSES:
            flat = {"type": "error", "code": error.reason, "message": error.message, "param": error.param}
            return encode(SseEvent(_json({**flat, "sequence_number": 0, "error": error}), "error"))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Decoder:
    """Bytes in, events out, however the bytes are cut. Bytes that are not UTF-8 become U+FFFD, as in a browser.

    A record that the stream ends in the middle of is not dispatched, as the standard says. Beyond the standard, an
    ``error:`` field is the data of an event named "error" (older llama-server builds fail that way, llama.cpp #16104).
    """

    def __init__(self, limit: int = MAX_RECORD) -> None:
        self._limit = limit
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        self._held = 0
        self._first = True
        self._after_cr = False
        self._data: list[str] = []
        self._error: list[str] = []
        self._name: str | None = None
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete. Raises RecordTooLong; the decoder is unusable after that."""
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
        events: list[SseEvent] = []
        for part in ended:
            self._line.append(part)
            line = "".join(self._line)
            self._line.clear()
            if line:
                self._take(line)
            else:
                events += self._dispatch()
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
        elif field == "error":
            self._error.append(value)
        elif field == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> list[SseEvent]:
        data, name, self._data, self._name, self._held = self._data, self._name, [], None, 0
        events = [SseEvent("\n".join(data), name or None, self._id)] if data else []
        if self._error:
            events.append(SseEvent("\n".join(self._error), "error", self._id))
            self._error = []
        return events

    def _hold(self, characters: int) -> None:
        self._held += characters
        if self._held > self._limit:
            raise RecordTooLong(f"a server-sent event is longer than {self._limit} characters")


class WholeRecords:
    """Passes a stream on unchanged, but only up to the last complete record.

    No reader could use the rest yet. If the sender dies in the middle of a record, the torn part is dropped and an
    error record can take its place. A record longer than ``limit`` bytes is passed on as it comes.
    """

    def __init__(self, limit: int = MAX_RECORD) -> None:
        self._limit = limit
        self._held = bytearray()
        self.torn = False
        """True if part of an unfinished record has been passed on: another record cannot follow it."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may leave now, possibly none."""
        if not self._held and not self.torn and chunk.endswith(b"\n\n"):
            return chunk  # how llama-server writes: whole records, nothing to look for
        held = self._held
        searched = max(len(held) - 3, 0)
        held += chunk
        end = end_of_records(held, searched)
        if end:
            self.torn = False
        elif self.torn or len(held) > self._limit:
            self.torn, end = True, len(held)
        ready = bytes(held[:end])
        del held[:end]
        return ready

    def rest(self) -> bytes:
        """Return the held bytes when the stream has ended properly."""
        held, self._held = bytes(self._held), bytearray()
        return held

    def missing(self) -> str:
        """Return the lack at the end of a model's stream, "" if there is none. A last empty line may be missing, or its
        line feed may have come alone.
        """
        if self._held.rstrip().endswith(b"[DONE]") or (self._held.endswith(b"\n") and b"data:" in self._held):
            return ""
        return "its stream ended within a record" if self._held.strip(b"\r\n") else ""


class UnframedRecords(WholeRecords):
    """The records of a stream that ends with its connection: only its last words tell whether it was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self._over = False

    def feed(self, chunk: bytes) -> bytes:
        ready = super().feed(chunk)
        self._over = self._over or _LAST_WORDS.search(ready) is not None
        return ready

    def missing(self) -> str:
        over = self._over or _LAST_WORDS.search(self._held) is not None
        return super().missing() or ("" if over else "its connection closed before the end of its answer")


def end_of_records(data: bytes | bytearray, start: int = 0) -> int:
    """Return where the last whole record of these bytes ends, looked for behind ``start``; 0: none does."""
    return max(_end_of(mark, data.rfind(mark, start)) for mark in _RECORD_ENDS)


def _end_of(mark: bytes, at: int) -> int:
    return at + len(mark) if at >= 0 else 0
