"""The end of a body: RFC 9112 sections 6.3 and 7.1, bytes in, bytes out.

h11 costs too much for it: a relayed SSE chunk took 35-42 us of CPU with it and 27 us without, and a relay does nothing
all day but this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

MAX_LINE = 4096
"""Bytes of a chunk's size line with its extensions, or of one trailer."""
MAX_TRAILERS = 16384
MAX_SIZE_DIGITS = 15

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,%d})(?:;[\t -~\x80-\xff]*)?" % MAX_SIZE_DIGITS)
_TRAILER = re.compile(
    rb"(?i)(?!(?:transfer-encoding|content-length|host):)[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*"
)


class BodyError(ValueError):
    """The bytes are not the body that the head announced; the text says why."""


class Body(Protocol):
    """One body. ``complete`` turns true with its last byte."""

    complete: bool

    def feed(self, data: bytes) -> bytes:
        """The content in ``data``, possibly none yet. Raises BodyError; what follows the end is one."""
        ...

    def end(self) -> None:
        """The connection was closed. Raises BodyError when the body is not complete."""
        ...


class Sized:
    """Content-Length bytes, or none."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = length == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            raise BodyError("it is longer than its Content-Length")
        self._left -= len(data)
        self.complete = self._left == 0
        return data

    def end(self) -> None:
        if not self.complete:
            raise BodyError(f"{self._left} bytes are missing at its end")


class UntilClose:
    """Everything until the connection is closed."""

    complete = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.complete = True


class Chunked:
    """The chunked transfer coding; extensions and trailers are passed over.

    With ``pipelined`` the next message may follow the last chunk: ``rest`` holds what was fed of it.
    """

    def __init__(self, *, pipelined: bool = False) -> None:
        self.complete = False
        self.rest = b""
        self._pipelined = pipelined
        self._at_size = True  # a size line comes next, and nothing of it is kept
        self._left = 0  # bytes of content in the current chunk
        self._after_content = False  # its CRLF comes next
        self._in_trailers = False
        self._trailers = 0
        self._kept = b""  # the beginning of a line

    def feed(self, data: bytes) -> bytes:
        # A server that streams sends each chunk in one piece, and a relay does nothing all day but this. The size that
        # the piece's length leaves for a chunk is written as hexadecimal and compared with what is there, because
        # int() would also read "+5", "5_0" and "0x5".
        if self._at_size:
            line_end = data.find(b"\r\n")
            size = len(data) - line_end - 4
            if line_end > 0 and size > 0 and data[-2:] == b"\r\n":
                digits = b"%x" % size
                if data[:line_end] == digits or data[:line_end] == digits.upper():
                    return data[line_end + 2 : -2]
        return self._feed(data)

    def end(self) -> None:
        if not self.complete:
            raise BodyError("its last chunk is missing")

    def _feed(self, data: bytes) -> bytes:
        """`feed`, for pieces that begin and end anywhere."""
        if self._kept:
            data, self._kept = self._kept + data, b""
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.complete:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after_content = not self._left
                continue
            line_end = data.find(b"\r\n", at, at + MAX_LINE)
            if line_end < 0:
                self._keep(data[at:])
                break
            self._line(data[at:line_end])
            at = line_end + 2
        if self.complete and at < end:
            if not self._pipelined:
                raise BodyError("something follows its last chunk")
            self.rest += data[at:]
        self._at_size = not (self._left or self._after_content or self._in_trailers or self._kept)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _keep(self, begun: bytes) -> None:
        """Wait for the rest of a line, unless none could make it one."""
        if len(begun) >= MAX_LINE:
            raise BodyError("a line between its chunks is too long")
        if self._after_content and not b"\r\n".startswith(begun):
            raise BodyError("a chunk is longer than its size")
        if b"\n" in begun or b"\r" in begun[:-1]:
            raise BodyError("a line between its chunks ends in a bare CR or LF")
        self._kept = begun

    def _line(self, line: bytes) -> None:
        if self._after_content:
            if line:
                raise BodyError("a chunk is longer than its size")
            self._after_content = False
        elif self._in_trailers:
            self._trailers += len(line) + 2
            if self._trailers > MAX_TRAILERS:
                raise BodyError("its trailers are too long")
            if line and not _TRAILER.fullmatch(line):
                raise BodyError("a trailer is not a header line, or is one that belongs in the head")
            self.complete = not line
        else:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise BodyError("a chunk has no valid size")
            self._left = int(size[1], 16)
            self._in_trailers = self._left == 0


def body_of(method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Body:
    """Return the framing of this response's body (RFC 9112 section 6.3). Raises BodyError if it is ambiguous."""
    if method == "HEAD" or status in (204, 304):
        return Sized(0)
    lengths: set[bytes] = set()
    coding: bytes | None = None
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"transfer-encoding":
            coding = value.strip().lower() if coding is None else b"several"
        elif lowered == b"content-length":
            lengths.add(value.strip())
    if coding is not None:
        if coding != b"chunked":
            raise BodyError("its transfer coding is not supported")
        return Chunked()
    if not lengths:
        return UntilClose()
    (length, *others) = lengths
    if others or not length.isdigit() or len(length) > MAX_SIZE_DIGITS:
        raise BodyError("its Content-Length is not a number")
    return Sized(int(length))
