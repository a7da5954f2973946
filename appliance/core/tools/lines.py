"""Text for a model: some lines of a file, output that is cut at a limit. Works as the bytes come, in bounded memory."""

from __future__ import annotations

MAX_OUTPUT = 16 * 1024
"""Bytes that a model gets at once; llama-server's (b11434)."""
TRUNCATED = "[output truncated]"


class LineWindow:
    """The lines from ``first`` to ``last`` (1-based, both included; None: to the end) of the input, at most
    `MAX_OUTPUT` bytes.

    Every line ends with a line feed, even the last one of a file without one.
    """

    def __init__(self, first: int = 1, last: int | None = None, *, numbered: bool = False) -> None:
        self._first = max(first, 1)
        self._last = last
        self._numbered = numbered
        self._line = 1
        self._inside = False
        self._kept = bytearray()
        self.full = last is not None and last < self._first
        """True if further input would not change `text`."""
        self._truncated = False

    def feed(self, data: bytes) -> None:
        at = 0
        if (passed := self._line + data.count(b"\n")) < self._first:
            self._line, at = passed, len(data)
        while at < len(data) and not self.full:
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            if self._line >= self._first:
                self._keep(data[at:stop])
            self._inside = end < 0
            if end >= 0:
                self._line += 1
                self.full = self.full or (self._last is not None and self._line > self._last)
            at = stop

    def text(self) -> str:
        """The result; read it at the end."""
        kept = bytes(self._kept)
        if self._truncated:
            return readable(kept) + ("" if kept.endswith(b"\n") else "\n") + TRUNCATED
        if self._inside and self._line >= self._first:
            kept += b"\n"
        return readable(kept)

    def _keep(self, part: bytes) -> None:
        if self._numbered and not self._inside:
            part = f"{self._line}→".encode() + part
        room = MAX_OUTPUT - len(self._kept)
        if len(part) > room:
            part = whole_characters(part[:room])
            self.full = self._truncated = True
        self._kept += part


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
        return readable(whole_characters(self.kept) if self.truncated else self.kept)


class Utf8Pieces:
    """Text as it comes, never cut within a character."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> str:
        data = self._rest + data
        whole = whole_characters(data)
        self._rest = data[len(whole) :]
        return readable(whole)

    def end(self) -> str:
        rest, self._rest = self._rest, b""
        return readable(rest)


def readable(data: bytes) -> str:
    """Decode; bytes that are not UTF-8 become U+FFFD."""
    return data.decode("utf-8", "replace")


def whole_characters(data: bytes) -> bytes:
    """Drop the beginning of an unfinished UTF-8 character at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1100_0000:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < size else data
        if byte < 0x80:
            break
    return data
