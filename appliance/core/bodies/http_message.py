"""Heads of HTTP/1.1 messages, where a body ends, and content codings that can be undone while a body passes.

Requests are written and responses read (RFC 9112 sections 3 to 7, RFC 9110 section 8.4.1): bytes in, bytes out. h11
does far more than is needed and costs too much: a relayed JSON request took 446 us of CPU with it and 388 us without,
a relayed SSE chunk 35-42 us and 27 us, and a relay does nothing all day but this. Heads are read strictly on purpose:
the other side is a process of ours.

No request of ours asks for a content coding, because a client's Accept-Encoding is not forwarded. A server that is not
asked may still use one (section 12.5.3), and some proxies in front of engines do. Accounting and captures decode it, as
llama-swap does.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from appliance.core.headers import Headers

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Header fields about one connection (RFC 9110 section 7.6.1, and what was used before it)."""
PIECE = 256 << 10
"""Bytes decoded at once: a small input can stand for a thousand times as much."""

MAX_DECODED = 256 << 20
"""Decoded bytes after which a body is not looked into any further."""

_DECODABLE = ("gzip", "deflate")
_NOTHING = ("", "identity")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: [^\x00\r\n]*+)?(?=\r\n)")
_NAME = rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+"
_FIELDS = re.compile(_NAME + rb"((?:[^\x00\r\n]++(?<![ \t]))?)(?=\r\n)")
_PADDED = re.compile(_NAME + rb"([^\x00\r\n]*+)(?=\r\n)")
"""The same with white space behind values, which hardly any server sends."""
MAX_LINE = 4096
"""Bytes of a chunk's size line with its extensions, or of one trailer."""
MAX_TRAILERS = 16384
MAX_SIZE_DIGITS = 15
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,%d})(?:;[\t -~\x80-\xff]*)?" % MAX_SIZE_DIGITS)
_TRAILER = re.compile(
    rb"(?i)(?!(?:transfer-encoding|content-length|host):)[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*"
)


class ContentDecoder:
    """Undoes one Content-Encoding, piece by piece.

    ``broken`` turns true, and stays so, with the first byte that cannot be decoded, with a coding that is none of
    the two, and beyond MAX_DECODED; nothing comes out after that.
    """

    __slots__ = ("_coding", "_decoded", "_inflate", "broken", "plain")

    def __init__(self, content_encoding: str | None) -> None:
        self._coding = content_encoding.partition(";")[0].strip().lower() if content_encoding else ""
        self._inflate = None  # its format is chosen by the first byte
        self._decoded = 0
        self.plain = self._coding in _NOTHING
        """Nothing has to be undone: the bytes may be used as they are."""
        self.broken = not self.plain and self._coding not in _DECODABLE

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The content in ``chunk`` in pieces of at most PIECE bytes. Take them all before the next call."""
        if self.plain:
            yield chunk
            return
        while chunk and not self.broken:
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window(chunk[0]))
            try:
                piece = self._inflate.decompress(chunk, PIECE)
            except zlib.error:
                self.broken = True
                return
            self._decoded += len(piece)
            self.broken = self._decoded > MAX_DECODED
            if piece and not self.broken:
                yield piece
            chunk = self._inflate.unconsumed_tail
            if self._inflate.eof:
                # A gzip body may be several members; after the end of a deflate one nothing is left to say.
                chunk = self._inflate.unused_data if self._coding == "gzip" else b""
                self._inflate = None

    def _window(self, first: int) -> int:
        if self._coding == "gzip":
            return zlib.MAX_WBITS | 16
        # "deflate" is the zlib format, but some senders leave its two-byte head out. Its low four bits are 8, which
        # at the start of bare deflate data would be a stored block with padding that is not zero.
        return zlib.MAX_WBITS if first & 0x0F == 8 else -zlib.MAX_WBITS


class HeadError(ValueError):
    """The bytes are not the head of a message; the text says why."""


class ResponseHead(Struct, frozen=True):
    """Names keep their case."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    version: bytes = b"1.1"


def write_request(method: str, target: str, headers: Headers) -> bytes:
    """The head of a request. Raises HeadError when a part of it would begin a line of its own."""
    if not target or not target.isascii() or " " in target or " " in method:
        raise HeadError(f"the request line cannot hold {method!r} and {target!r}")
    lines = [f"{method} {target} HTTP/1.1".encode(), *map(b": ".join, headers), b"\r\n"]
    head = b"\r\n".join(lines)
    if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines):
        raise HeadError("a header holds a line break")
    return head


def read_response(head: bytes) -> ResponseHead:
    """``head`` ends with the empty line. Raises HeadError for everything that RFC 9112 does not allow."""
    line = _STATUS_LINE.match(head)
    if line is None:
        raise HeadError("it does not begin with a status line of HTTP/1.1")
    # A field begins with the break before it and ends in front of the next one, so nothing lies between two of them if
    # there are as many breaks as fields, but for the two at the end.
    breaks = head.count(b"\n") if head.endswith(b"\r\n\r\n") else 0
    headers = _FIELDS.findall(head, line.end())
    if len(headers) + 2 != breaks:
        headers = [(name, value.rstrip(b" \t")) for name, value in _PADDED.findall(head, line.end())]
        if len(headers) + 2 != breaks:
            raise HeadError("a header line is malformed")
    return ResponseHead(int(line[2]), headers, line[1])


class BodyError(ValueError):
    """The bytes are not the body that the head announced; the text says why."""


class BodyReader(Protocol):
    """One body. ``complete`` turns true with its last byte."""

    complete: bool

    def feed(self, data: bytes) -> bytes:
        """The content in ``data``, possibly none yet. Raises BodyError, also for bytes behind the end."""
        ...

    def end(self) -> None:
        """The connection was closed. Raises BodyError when the body is not complete."""
        ...


class Sized:
    """Content-Length bytes, or none."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.complete = length == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.left:
            raise BodyError("it is longer than its Content-Length")
        self.left -= len(data)
        self.complete = self.left == 0
        return data

    def end(self) -> None:
        if not self.complete:
            raise BodyError(f"{self.left} bytes are missing at its end")


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


def body_of(method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> BodyReader:
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
