"""The output of a process, cut at a limit, and bytes as text that is never cut within a character."""

from __future__ import annotations

import codecs

MAX_OUTPUT = 16 * 1024
"""Bytes that a model gets at once; llama-server's (b11434)."""


class CappedOutput:
    """The first bytes of a process's output; the rest is dropped."""

    def __init__(self, limit: int = MAX_OUTPUT) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False

    def feed(self, data: bytes) -> bytes:
        """The kept bytes as text."""
        part = data[: self._limit - len(self._kept)]
        self._kept += part
        self.truncated = self.truncated or len(part) < len(data)
        return part

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    def text(self) -> str:
        return whole_characters(self.kept) if self.truncated else readable(self.kept)


def readable(data: bytes) -> str:
    """Decode; bytes that are not UTF-8 become U+FFFD."""
    return data.decode("utf-8", "replace")


def whole_characters(data: bytes) -> str:
    """Decode as `readable` does, without an unfinished character at the end."""
    return text_decoder().decode(data)


def text_decoder() -> codecs.IncrementalDecoder:
    """Decode text as it comes, never cut within a character."""
    return codecs.getincrementaldecoder("utf-8")("replace")
