"""Requests and answers kept for the person who looks into them: in memory, within a budget of bytes, oldest out first.

Nothing is copied, compressed or put into words while a request is under way: what is kept are references to the bytes
that pass anyway. The budget counts what is really held, so `waiting` tells what could be compressed meanwhile; a
`Packing` is done in a thread, and put in place where the buffer lives. What is kept of which route, and which headers
are hidden, is llama-swap 0bdb3720's choice.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from appliance.core.bodies.http_message import ContentDecoder
from appliance.core.headers import Headers
from appliance.core.secrets import REDACTED, is_secret_name

MAX_RATIO = 16
"""How many times the budget a body may be long, however well it packs: a reader gets it whole."""

BLOCK = 64 << 10
"""Bytes of an answer under way that are worth being compressed; parts that are compressed together never needs to be
read alone, and more at once would hardly be smaller.
"""

_ENTRY = 400
"""Bytes that one capture takes besides its contents, so that many small ones keep within the budget too."""
_PIECE = 40
"""Bytes that one piece of a body, or one header, takes besides its contents."""


class Capture(Struct, frozen=True, kw_only=True):
    """One exchange kept for its reader. In JSON bodies are base64 and parts that are not kept are null."""

    id: int
    req_path: str
    req_headers: dict[str, str]
    req_body: bytes | None = None
    sent_body: bytes | UnsetType = UNSET
    """The body that the engine took, where that was a repaired one."""
    resp_headers: dict[str, str] | None = None
    resp_body: bytes | None = None


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
    """Return the parts to keep of a route, without the prefix /upstream/<model>. Sound and pictures are not kept."""
    return _PARTS.get(path, _BOTH)


def captured_headers(headers: Iterable[tuple[bytes, bytes]], *, decoded: bool = False) -> dict[str, str]:
    """Names in their usual spelling, of each the first value; possible secrets are hidden.

    ``decoded`` leaves Content-Encoding out: the body that goes with these has been decoded.
    """
    kept: dict[str, str] = {}
    for name, value in headers:
        lowered = name.lower()
        if decoded and lowered == b"content-encoding":
            continue
        usual = "-".join(part.capitalize() for part in lowered.decode("latin-1").split("-"))
        kept.setdefault(usual, REDACTED if is_secret_name(usual) else value.decode("latin-1"))
    return kept


class Packing(NamedTuple):
    """Something that can be compressed: ``work`` in a thread, then ``put`` with its result."""

    size: int
    work: Callable[[], bytes]
    put: Callable[[bytes], None]


class CapturedBody(Struct, eq=False):
    """One long answer's body: its pieces as they come. One that outgrows ``limit`` is given up.

    A long one may be compressed while it still comes: its `packing` takes what has come so far. Once it is closed
    it never changes again.
    """

    limit: int
    blocks: list[bytes] = []
    """The beginning, compressed block by block."""
    pieces: list[bytes] = []
    """The rest, behind the blocks."""
    raw: int = 0
    """Bytes of the pieces; -1 when it is given up."""
    held: int = 0
    """Bytes of blocks and pieces, and of what holds them."""
    size: int = 0
    """Bytes of the whole."""
    closed: bool = False
    """Nothing follows, and nothing is compressed any more."""

    def feed(self, piece: bytes) -> bool:
        """Keep the next bytes; True: there are enough to be worth compressing. Costs nothing once it is given up."""
        if self.raw < 0:
            return False
        size = len(piece)
        self.size += size
        self.raw += size
        self.held += size + _PIECE
        self.pieces.append(piece)
        if self.held > self.limit or self.size > self.limit * MAX_RATIO:
            self.pieces.clear()
            self.blocks.clear()
            self.raw, self.held = -1, 0
        return self.raw >= BLOCK

    @property
    def given_up(self) -> bool:
        return self.raw < 0

    def packing(self) -> Packing:
        """Compress what has come so far."""
        pieces, size = tuple(self.pieces), self.raw

        def put(block: bytes) -> None:
            if not self.closed and not self.given_up:
                del self.pieces[: len(pieces)]
                self.blocks.append(block)
                self.raw -= size
                self.held += len(block) - size - _PIECE * (len(pieces) - 1)

        return Packing(size, lambda: zlib.compress(b"".join(pieces), 1), put)


class _Told(Struct, array_like=True):
    """The part of an exchange that is compressed at its end: all but the blocks that are compressed already."""

    path: str
    request_headers: Mapping[str, str]
    request_body: bytes | None
    response_headers: Mapping[str, str] | None
    response_end: bytes | None
    sent_body: bytes | None


_TOLD = msgspec.msgpack.Decoder(_Told)


_Raw = tuple[str, Headers, bytes | None, Headers | None, CapturedBody | bytes | None, bytes | None]
"""An exchange as it passed: the arguments of `CapturedExchange`."""


def _described(raw: _Raw) -> _Told:
    path, request_headers, request_body, response_headers, answer, sent = raw
    if isinstance(answer, CapturedBody):
        answer = None if answer.given_up else b"".join(answer.pieces)
    return _Told(
        path=path,
        request_headers=captured_headers(request_headers),
        request_body=request_body,
        response_headers=None if response_headers is None else captured_headers(response_headers, decoded=True),
        response_end=answer,
        sent_body=sent,
    )


class CapturedExchange:
    """The capture of one request; a part that is None is left out.

    ``response_body`` is in this content ``coding``; one that came in several pieces is closed with it. ``sent_body`` is
    the request's as the engine took it, where it was repaired.
    """

    __slots__ = ("_blocks", "_coding", "_packed", "held", "raw")

    def __init__(
        self,
        path: str,
        request_headers: Headers,
        request_body: bytes | None = None,
        response_headers: Headers | None = None,
        response_body: CapturedBody | bytes | None = None,
        coding: str | None = None,
        sent_body: bytes | None = None,
    ) -> None:
        self.raw: _Raw | None = (path, request_headers, request_body, response_headers, response_body, sent_body)
        """None once it is compressed."""
        self._packed = b""
        self._blocks: Sequence[bytes] = ()
        self._coding = coding
        held = _ENTRY + _held(request_headers) + len(request_body or b"") + len(sent_body or b"")
        if response_headers is not None:
            held += _held(response_headers)
        if isinstance(response_body, CapturedBody):
            response_body.closed = True
            held += response_body.held
            self._blocks = response_body.blocks
        elif response_body is not None:
            held += len(response_body)
        self.held = held
        """Bytes that it takes."""

    def packing(self, put: Callable[[bytes], None]) -> Packing:
        """Compress it, and ``put`` the result, which is for `pack`."""
        raw = self.raw
        assert raw is not None, "nothing is compressed twice"
        return Packing(self.held, lambda: zlib.compress(msgspec.msgpack.encode(_described(raw)), 1), put)

    def pack(self, packed: bytes) -> None:
        """It has been compressed."""
        self.raw, self._packed = None, packed
        self.held = _ENTRY + len(packed) + sum(map(len, self._blocks))

    def reading(self, id: int, limit: int) -> Callable[[], Capture]:
        """Return the function that decodes it for a reader; see `CaptureBuffer.find`."""
        raw, packed, blocks, coding = self.raw, self._packed, self._blocks, self._coding

        def read() -> Capture:
            told = _described(raw) if raw is not None else _TOLD.decode(zlib.decompress(packed))
            end = told.response_end
            return Capture(
                id=id,
                req_path=told.path,
                req_headers=dict(told.request_headers),
                req_body=told.request_body,
                sent_body=told.sent_body if told.sent_body is not None else UNSET,
                resp_headers=None if told.response_headers is None else dict(told.response_headers),
                resp_body=None if end is None else _decoded([*map(zlib.decompress, blocks), end], coding, limit),
            )

        return read


def _held(headers: Headers) -> int:
    return _PIECE * 3 * len(headers) + sum(map(len, chain.from_iterable(headers)))


class CaptureBuffer:
    """The captures of the latest requests, by the id of their row. Lost when the program ends."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes; 0 keeps nothing."""
        self.used = 0
        self._kept: OrderedDict[int, CapturedExchange] = OrderedDict()
        self._raw: dict[int, CapturedExchange] = {}  # those that are not compressed

    def add(self, id: int, exchange: CapturedExchange) -> bool:
        """Keep it, at the expense of the oldest; False, and nothing has changed, when it alone is too large."""
        if exchange.held > self.limit:
            return False
        if id in self._kept:
            self._drop(id)
        self.used += exchange.held
        while self.used > self.limit:
            self._drop(next(iter(self._kept)))
        self._kept[id] = self._raw[id] = exchange
        return True

    def has(self, id: int) -> bool:
        return id in self._kept

    @property
    def is_raw(self) -> bool:
        """True if there is something to compress."""
        return bool(self._raw)

    def find(self, id: int) -> Callable[[], Capture] | None:
        """Return a function that makes the capture of this row as it is now. It may take a while, in any thread."""
        exchange = self._kept.get(id)
        return None if exchange is None else exchange.reading(id, self.limit)

    def waiting(self, most: int) -> list[Packing]:
        """Return the oldest exchanges that are not compressed yet, up to ``most`` bytes together."""
        found: list[Packing] = []
        for id, exchange in self._raw.items():
            if most <= 0:
                break
            most -= exchange.held
            found.append(exchange.packing(partial(self._pack, id, exchange)))
        return found

    def _pack(self, id: int, exchange: CapturedExchange, packed: bytes) -> None:
        if self._raw.get(id) is exchange:  # it is not gone meanwhile
            del self._raw[id]
            self.used -= exchange.held
            exchange.pack(packed)
            self.used += exchange.held

    def _drop(self, id: int) -> None:
        self.used -= self._kept.pop(id).held
        self._raw.pop(id, None)


def _decoded(parts: Sequence[bytes], coding: str | None, limit: int) -> bytes | None:
    """The content; None for one that is too long for the person who looks."""
    decoder = ContentDecoder(coding)
    content = bytearray()
    for part in parts:
        for piece in decoder.feed(part):
            content += piece
            if len(content) > limit * MAX_RATIO:
                return None
    return bytes(content)
