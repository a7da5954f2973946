"""Content codings that can be undone while a body passes: gzip and deflate (RFC 9110 section 8.4.1).

No request of ours asks for one, because a client's Accept-Encoding is not forwarded. A server that is not asked may
still use one (section 12.5.3), and some proxies in front of engines do. Accounting and captures decode it, as
llama-swap does.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

PIECE = 256 << 10
"""Bytes decoded at once: a small input can stand for a thousand times as much."""

MAX_DECODED = 256 << 20
"""Decoded bytes after which a body is not looked into any further."""

_DECODABLE = ("gzip", "deflate")
_NOTHING = ("", "identity")


def _name(coding: str) -> str:
    return coding.partition(";")[0].strip().lower()


class ContentDecoder:
    """Undoes one Content-Encoding, piece by piece.

    ``broken`` turns true, and stays so, with the first byte that cannot be decoded, with a coding that is none of
    the two, and beyond MAX_DECODED; nothing comes out after that.
    """

    __slots__ = ("_coding", "_decoded", "_inflate", "broken", "plain")

    def __init__(self, content_encoding: str | None) -> None:
        self._coding = _name(content_encoding) if content_encoding else ""
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
