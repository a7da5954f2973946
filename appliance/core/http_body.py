"""Where a response body ends: RFC 9112 sections 6.3 and 7.1, bytes in, bytes out.

h11 costs too much for it: a relayed SSE chunk took 35-42 us of CPU with it and 27 us without, and a relay does nothing
all day but this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

MAX_LINE = 4096
"""Bytes of a chunk's size line with its extensions, or of one trailer."""
MAX_TRAILERS = 16384
MAX_SIZE_DIGITS = 15
HEX = b"0123456789abcdefABCDEF"


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
    """The chunked transfer coding; extensions and trailers are passed over."""

    def __init__(self) -> None:
        self.complete = False
        self._left = 0  # bytes of content in the current chunk
        self._after_content = False  # its CRLF comes next
        self._in_trailers = False
        self._trailers = 0
        self._kept = b""  # the beginning of a line

    def feed(self, data: bytes) -> bytes:
        if self._kept:
            data, self._kept = self._kept + data, b""
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self.complete:
                raise BodyError("something follows its last chunk")
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after_content = not self._left
                continue
            line_end = data.find(b"\r\n", at, at + MAX_LINE)
            if line_end < 0:
                if end - at >= MAX_LINE:
                    raise BodyError("a line between its chunks is too long")
                self._kept = data[at:]
                if self._after_content and not b"\r\n".startswith(self._kept):
                    raise BodyError("a chunk is longer than its size")
                break
            self._line(data[at:line_end])
            at = line_end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self) -> None:
        if not self.complete:
            raise BodyError("its last chunk is missing")

    def _line(self, line: bytes) -> None:
        if self._after_content:
            if line:
                raise BodyError("a chunk is longer than its size")
            self._after_content = False
        elif self._in_trailers:
            self._trailers += len(line) + 2
            if self._trailers > MAX_TRAILERS:
                raise BodyError("its trailers are too long")
            self.complete = not line
        else:
            digits = line.split(b";", 1)[0].rstrip(b" \t")
            if not digits or digits.strip(HEX) or len(digits) > MAX_SIZE_DIGITS:
                raise BodyError("a chunk has no valid size")
            self._left = int(digits, 16)
            self._in_trailers = self._left == 0


def body_of(method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Body:
    """How the body of this response is framed (RFC 9112 section 6.3). Raises BodyError for what cannot be told."""
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
