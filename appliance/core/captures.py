"""Requests and answers kept for the person who looks into them: in memory, within a budget of bytes, oldest out first.

Bodies are compressed while they pass, so that neither a long answer is held whole nor its end costs a pause. What is
kept of which route, and which headers are hidden, is llama-swap 0bdb3720's choice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct

from appliance.core.content_coding import ContentDecoder
from appliance.wire.activity import Capture

REDACTED = "[REDACTED]"
_SECRET = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"set-cookie", b"x-api-key"})

MAX_RATIO = 16
"""How many times the budget a body may have before it is compressed: whoever looks at it gets it whole."""

_BLOCK = 64 << 10
"""Bytes collected before they are compressed: a record of a stream alone would cost a call for 200 bytes."""


_ENTRY = 400
"""Bytes that one capture takes besides its contents, so that many small ones keep within the budget too."""


class Parts(NamedTuple):
    """Which bodies of a route are kept."""

    request: bool
    response: bool


_BOTH = Parts(request=True, response=True)
_PARTS = {
    "/v1/audio/speech": Parts(request=True, response=False),
    "/v1/audio/voices": Parts(request=False, response=True),
    "/v1/audio/transcriptions": Parts(request=False, response=True),
    "/v1/images/generations": Parts(request=True, response=False),
    "/v1/images/edits": Parts(request=False, response=False),
    "/sdapi/v1/txt2img": Parts(request=True, response=False),
    "/sdapi/v1/img2img": Parts(request=False, response=False),
}


def captured_parts(path: str) -> Parts:
    """Of a model route, without what /upstream/<model> puts in front: sound and pictures are not kept."""
    return _PARTS.get(path, _BOTH)


def captured_headers(headers: Iterable[tuple[bytes, bytes]], *, decoded: bool = False) -> dict[str, str]:
    """Names in their usual spelling, of each the first value; what could be a secret is hidden.

    ``decoded`` leaves Content-Encoding out: the body that goes with these has been decoded.
    """
    kept: dict[str, str] = {}
    for name, value in headers:
        lowered = name.lower()
        if decoded and lowered == b"content-encoding":
            continue
        usual = "-".join(part.capitalize() for part in lowered.decode("latin-1").split("-"))
        kept.setdefault(usual, REDACTED if lowered in _SECRET else value.decode("latin-1"))
    return kept


class PackedBody(NamedTuple):
    """A body, compressed with zlib."""

    packed: bytes
    size: int
    """Bytes before compression."""


class CaptureWriter:
    """Collects one body within a budget of ``limit`` compressed bytes; one that outgrows it is given up at once.

    Give every writer the budget of the whole buffer. Feeding it costs nothing after it has given up.
    """

    def __init__(self, limit: int, content_encoding: str | None = None) -> None:
        self._limit = limit
        self._decoder = ContentDecoder(content_encoding)
        self._compress = zlib.compressobj(level=1)
        self._block = bytearray()
        self._packed = bytearray()
        self._size = 0
        self.given_up = limit <= 0

    def feed(self, chunk: bytes) -> None:
        if self.given_up:
            return
        for piece in self._decoder.feed(chunk):
            self._add(piece)
            if self.given_up:
                return

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._block += piece
        if len(self._block) >= _BLOCK:
            self._packed += self._compress.compress(self._block)
            self._block.clear()
        if len(self._packed) > self._limit or self._size > self._limit * MAX_RATIO:
            self._give_up()

    def _give_up(self) -> None:
        self.given_up = True
        self._block.clear()
        self._packed.clear()

    def end(self) -> PackedBody | None:
        """What was collected, also of an answer that broke off; None when it was too large. Call it once."""
        if self.given_up:
            return None
        self._packed += self._compress.compress(self._block) + self._compress.flush()
        if len(self._packed) > self._limit:
            self._give_up()
            return None
        return PackedBody(bytes(self._packed), self._size)


def pack(body: bytes, limit: int) -> PackedBody | None:
    """A body that is there already; about 10 ms for each megabyte of text."""
    writer = CaptureWriter(limit)
    writer.feed(body)
    return writer.end()


class Exchange(Struct, frozen=True, kw_only=True):
    """What is to be kept of one request; a part that is None is not kept. The headers are redacted already."""

    req_path: str
    req_headers: Mapping[str, str]
    req_body: PackedBody | None = None
    resp_headers: Mapping[str, str] | None = None
    resp_body: PackedBody | None = None


class _Head(Struct, array_like=True):
    path: str
    request: Mapping[str, str]
    response: Mapping[str, str] | None


class _Kept(NamedTuple):
    head: bytes
    request: PackedBody | None
    response: PackedBody | None
    cost: int


class CaptureBuffer:
    """The captures of the latest requests, by the id of their row. Lost when the program ends."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes; 0 keeps nothing."""
        self._used = 0
        self._kept: dict[int, _Kept] = {}

    def add(self, id: int, exchange: Exchange) -> bool:
        """Keep it, at the expense of the oldest; False, and nothing has changed, when it alone is too large."""
        kept = _kept(exchange)
        if kept.cost > self.limit:
            return False
        self._drop(id)
        while self._used + kept.cost > self.limit:
            self._drop(next(iter(self._kept)))
        self._kept[id] = kept
        self._used += kept.cost
        return True

    def has(self, id: int) -> bool:
        return id in self._kept

    def get(self, id: int) -> Capture | None:
        if (kept := self._kept.get(id)) is None:
            return None
        head = msgspec.msgpack.decode(zlib.decompress(kept.head), type=_Head)
        return Capture(
            id=id,
            req_path=head.path,
            req_headers=dict(head.request),
            req_body=_unpacked(kept.request),
            resp_headers=None if head.response is None else dict(head.response),
            resp_body=_unpacked(kept.response),
        )

    def _drop(self, id: int) -> None:
        if (kept := self._kept.pop(id, None)) is not None:
            self._used -= kept.cost


def _kept(exchange: Exchange) -> _Kept:
    head = _Head(exchange.req_path, exchange.req_headers, exchange.resp_headers)
    packed = zlib.compress(msgspec.msgpack.encode(head), 1)
    bodies = (body for body in (exchange.req_body, exchange.resp_body) if body is not None)
    cost = _ENTRY + len(packed) + sum(len(body.packed) for body in bodies)
    return _Kept(packed, exchange.req_body, exchange.resp_body, cost)


def _unpacked(body: PackedBody | None) -> bytes | None:
    return None if body is None else zlib.decompress(body.packed)
