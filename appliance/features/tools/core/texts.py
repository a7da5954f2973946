"""Text that models read and change: some lines of a file, and replaced pieces.

Lines are read as the bytes come, in bounded memory. All edits of one call apply to the original text. A piece is looked
for as it was written, and then as models tend to miswrite it: without regard to spaces at the ends of lines, and with
typographic quotes, dashes and spaces as their plain likes. Either way it is the original that is cut: whatever no edit
names keeps its every character.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct

from appliance.core.capped_output import MAX_OUTPUT, readable, whole_characters

TRUNCATED = "[output truncated]"
MAX_EDITS = 1000  # limit on edits: each is looked for in all of the text
_ALIKE = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u202f\u205f\u3000" + "".join(map(chr, range(0x2002, 0x200B)))), " "),
}
_ENDS = " \t\r"


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
        self.full = last is not None and last < self._first  # true if further input would not change `text`
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
            return whole_characters(kept) + ("" if kept.endswith(b"\n") else "\n") + TRUNCATED
        if self._inside and self._line >= self._first:
            kept += b"\n"
        return readable(kept)

    def _keep(self, part: bytes) -> None:
        if self._numbered and not self._inside:
            part = f"{self._line}→".encode() + part
        room = MAX_OUTPUT - len(self._kept)
        if len(part) > room:
            part = part[:room]
            self.full = self._truncated = True
        self._kept += part


class TextEdit(Struct, frozen=True, kw_only=True):
    old_text: Annotated[str, Meta(description="The current text; it must occur exactly once")]
    new_text: Annotated[str, Meta(description="The new text in its place")]


class EditProblem(Exception):
    """The reason why nothing was changed."""


def apply_edits(text: str, edits: Sequence[TextEdit]) -> str:
    """Return the text with every edit made. Raises EditProblem; it never makes only some of the edits."""
    if not edits:
        raise EditProblem('"edits" must be a non-empty array')
    if len(edits) > MAX_EDITS:
        raise EditProblem(f"there are {len(edits)} edits; the most is {MAX_EDITS}: use write_file for the whole file")
    plain: _PlainText | None = None
    cuts: list[tuple[int, int, int]] = []  # beginning and end of each, and the edit's place in the list
    for index, edit in enumerate(edits):
        if not edit.old_text:
            raise EditProblem(f"edits[{index}].old_text must not be empty")
        span = _only(text, edit.old_text, index)
        if span is None:
            plain = plain or _PlainText(text)
            span = plain.only(edit.old_text, index)
        cuts.append((*span, index))
    cuts.sort()
    for (_, end, before), (start, _, after) in pairwise(cuts):
        if end > start:
            how = "merge them into one edit, or choose pieces that are apart"
            raise EditProblem(f"edits[{before}] and edits[{after}] overlap; {how}")
    parts: list[str] = []
    at = 0
    for start, end, index in cuts:
        new = edits[index].new_text
        if "\r\n" in text[start:end] and "\r" not in edits[index].old_text + new:
            new = new.replace("\n", "\r\n")  # the file's lines end so, and the model did not see it
        parts += (text[at:start], new)
        at = end
    changed = "".join((*parts, text[at:]))
    if changed == text:
        raise EditProblem("no changes made: the replacements equal the existing text")
    return changed


def _only(text: str, old: str, index: int) -> tuple[int, int] | None:
    """Return its place, None if it is missing. Raises EditProblem if it occurs more than once."""
    at = text.find(old)
    if at < 0:
        return None
    if text.find(old, at + 1) >= 0:
        raise EditProblem(f"edits[{index}].old_text occurs more than once; it must be unique: add lines around it")
    return at, at + len(old)


def _plain_lines(text: str) -> list[str]:
    """Normalise lines; each stays as long as in the text, except at its end."""
    return [line.translate(_ALIKE).rstrip(_ENDS) for line in text.split("\n")]


class _PlainText:
    """A text in which similar characters are equal, and the original place of each character."""

    def __init__(self, text: str) -> None:
        self._text = "\n".join(_plain_lines(text))
        self._starts: list[tuple[int, int]] = []  # of each line: in the plain text, in the original
        plain = original = 0
        for line, kept in zip(text.split("\n"), _plain_lines(text), strict=True):
            self._starts.append((plain, original))
            plain += len(kept) + 1
            original += len(line) + 1

    def only(self, old: str, index: int) -> tuple[int, int]:
        """Find it as `_only` does, in places of the original. Raises EditProblem if it is missing here as well."""
        wanted = "\n".join(_plain_lines(old))
        span = _only(self._text, wanted, index) if wanted.strip() else None
        if span is None:
            raise EditProblem(
                f"could not find edits[{index}].old_text; it must match the file's current text: read the file again"
            )
        return self._original(span[0]), self._original(span[1])

    def _original(self, at: int) -> int:
        plain, original = self._starts[bisect_right(self._starts, (at, sys.maxsize)) - 1]
        return original + at - plain
