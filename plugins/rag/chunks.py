"""Sections -> chunks of a bounded size: whole paragraphs if they fit, each beginning with the end of the last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .sections import Section

BREAKS = (r"\n", r"(?<=[.!?;:])\s", r"\s")
"""The places at which to split a paragraph that is too long, best first."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    heading: str
    line: int
    """The line of the file on which it begins, not counting its repeated part; 0 if lines mean nothing."""
    text: str

    @property
    def embedded(self) -> str:
        """The text to embed: the chunk under its heading."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


def chunks(found: Iterable[Section], size: int, overlap: int) -> Iterator[Chunk]:
    """Yield chunks of at most ``size`` characters; of those, at most ``overlap`` repeat the end of the one before."""
    for section in found:
        yield from _section_chunks(section, size, overlap)


def _section_chunks(section: Section, size: int, overlap: int) -> Iterator[Chunk]:
    text, start = "", 0

    def chunk() -> Chunk:
        line = section.line + section.text.count("\n", 0, start) if section.line else 0
        return Chunk(heading=section.heading, line=line, text=text)

    for offset, piece in _pieces(section.text, size - overlap):
        joined = f"{text}\n\n{piece}" if text else piece
        if text and len(joined) > size:
            yield chunk()
            tail = _tail(text, overlap - 2)
            joined, start = (f"{tail}\n\n{piece}" if tail else piece), offset
        elif not text:
            start = offset
        text = joined
    if text:
        yield chunk()


def _pieces(text: str, size: int) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, and parts of those longer than ``size``, each with its place in ``text``."""
    blank = re.match(r"(?:[^\S\n]*\n)*", text)
    start = blank.end() if blank else 0
    for gap in re.compile(r"\n\s*\n").finditer(text, start):
        yield from _parts(text[start : gap.start()], start, size)
        start = gap.end()
    yield from _parts(text[start:], start, size)


def _parts(text: str, offset: int, size: int) -> Iterator[tuple[int, str]]:
    while len(text) > size:
        at = _break(text, size)
        if text[:at].strip():
            yield offset, text[:at].rstrip()
        rest = text[at:].lstrip()
        offset += len(text) - len(rest)
        text = rest
    if text.strip():
        yield offset, text.rstrip()


def _break(text: str, size: int) -> int:
    """Return where to split: the last good place in the second half of ``size`` characters, or in the middle of a
    word.
    """
    for pattern in BREAKS:
        places = [match.end() for match in re.finditer(pattern, text[:size])]
        if places and places[-1] > size // 2:
            return places[-1]
    return size


def _tail(text: str, length: int) -> str:
    """Return the last words of ``text``, at most ``length`` characters."""
    if length <= 0:
        return ""
    tail = text[-length:]
    if len(text) > length and not text[-length - 1].isspace():
        _, space, tail = tail.partition(" ")
        tail = tail if space else ""
    return tail.strip()
