"""Bodies as real clients send them: compressed, or with half a character. Read once, before anything else looks.

Also whether a client takes an answer compressed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from appliance.errors import BadRequest, UnsupportedCoding

PIECE = 1 << 20
"""Most bytes that come at once: a small body may stand for a very large one, which has to be counted as it grows."""
MAX_MEMBERS = 100
"""Files of gzip in one body. A client sends one, and each costs as much as a small body."""
MAX_HALVES = 1000
_SLICE = 1 << 16  # bytes that go in at once: zlib copies what it leaves of them
_WINDOW = 47  # the largest window, with the head of zlib or of gzip
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SOUND = re.compile(rb"[^\\]*+(?:\\(?:%b|u(?![dD][89a-fA-F])|[^u])[^\\]*+)*+" % _PAIR)
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
SMALLEST = 600  # bytes of an answer; compressing less than this saves no packet
_WEIGHTED = re.compile(r"(?i)([^\s,;]+)\s*(?:;\s*q=([\d.]+))?")


def inflated(content: bytes, coding: str) -> Iterator[bytes]:
    """Yield a body without its content coding, in pieces of at most PIECE bytes; the caller bounds their sum.

    Raises UnsupportedCoding, and BadRequest for bytes that are not so coded.
    """
    pieces = (content[at : at + _SLICE] for at in range(0, len(content), _SLICE))
    for one in reversed([name.strip().lower() for name in coding.split(",")]):
        if one in ("", "identity"):
            continue
        if one not in ("gzip", "x-gzip", "deflate"):
            raise UnsupportedCoding(one)
        pieces = _inflated(pieces, one)
    return pieces


def _inflated(pieces: Iterator[bytes], coding: str) -> Iterator[bytes]:
    reader, members = None, 0
    for data in pieces:
        more = True
        while more:
            if reader is None:
                bare = coding == "deflate" and data[:1] != b"\x78"  # many send it without zlib's head
                reader, members = zlib.decompressobj(-zlib.MAX_WBITS if bare else _WINDOW), members + 1
                if members > MAX_MEMBERS:
                    raise BadRequest(f"the request body has more than {MAX_MEMBERS} files of {coding}; send one")
            try:
                piece = reader.decompress(data, PIECE)
            except zlib.error as error:
                raise BadRequest(f"the request body is not {coding}, as its Content-Encoding says: {error}") from None
            if piece:
                yield piece
            data, more = reader.unconsumed_tail, len(piece) == PIECE
            if reader.eof:
                data, reader, more = reader.unused_data, None, False
            more = more or bool(data)
    if reader is not None:
        raise BadRequest(f"the request body ends in the middle of its {coding} data")


def without_halves(content: bytes) -> bytes:
    """Return JSON in which each escaped half of a character is U+FFFD: no engine reads the half.

    JavaScript cuts texts between the halves. The same object comes back where there is none. Of more than MAX_HALVES
    the rest stays, which no reader of the body takes.
    """
    if b"\\ud" not in content and b"\\uD" not in content:
        return content
    # A body may have a million escapes, nearly all of them sound: the pattern goes through those, and Python sees none.
    pieces: list[bytes] = []
    at = 0
    while len(pieces) < 2 * MAX_HALVES and (sound := _SOUND.match(content, at)) and _HALF.match(content, sound.end()):
        pieces += (content[at : sound.end()], b"\\ufffd")
        at = sound.end() + len(b"\\ud800")
    return b"".join((*pieces, content[at:])) if pieces else content


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding lets an answer be compressed: by the weight of gzip, else by that of ``*``.

    Source: RFC 9110 section 12.5.3.
    """
    weights = {name.lower(): weight for name, weight in _WEIGHTED.findall(accepted)}
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and (weight == "" or weight.strip("0.") != "")
