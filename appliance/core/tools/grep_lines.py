"""Turns the output of ``grep -n``, as it comes, into that of grep_search."""

from __future__ import annotations

import re
from collections.abc import Collection

from appliance.core.tools.jobs import MAX_LINE, MAX_TEXT
from appliance.core.tools.lines import readable

LONGEST = 1 << 20
"""Bytes of one unfinished line that are kept."""
_MARK = re.compile("[:-]")
_BEHIND_NAME = re.compile(r"([:-])([0-9]+)\1(.*)", re.DOTALL)
_ALONE = re.compile(r"([0-9]+)([:-])(.*)", re.DOTALL)


class GrepLines:
    """``names``: the files that were searched, which lines of output begin with; empty: ``shown`` was, without."""

    def __init__(self, names: Collection[str], shown: str, *, numbers: bool, limit: int) -> None:
        self.text = ""
        self.matches = 0
        self.full = False
        self._names = frozenset(names)
        self._longest = max(map(len, names), default=0)
        self._shown = shown
        self._numbers = numbers
        self._limit = limit
        self._rest = b""
        self._parts: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> bool:
        """True if more is wanted."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LONGEST]
        for line in lines:
            if not self.full:
                self._line(readable(line[:LONGEST]))
        self.text = "".join(self._parts)
        return not self.full

    def _line(self, line: str) -> None:
        if line == "--":
            self._parts.append("--\n")
            return
        if (found := self._read(line)) is None:
            return  # grep's own words, of binary files
        name, mark, number, text = found
        if mark == ":" and (self.matches == self._limit or self._size > MAX_TEXT):
            self.full = True
            return
        self.matches += mark == ":"
        where = f"{name}{mark}{number}{mark}" if self._numbers else f"{name}{mark}"
        shown = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}..."
        self._size += len(where) + len(shown) + 1
        self._parts.append(f"{where}{shown}\n")

    def _read(self, line: str) -> tuple[str, str, str, str] | None:
        """Split into name, mark, number and text. A name may contain colons, hyphens and digits; only searched names
        count.
        """
        if not self._names:
            found = _ALONE.match(line)
            return (self._shown, found[2], found[1], found[3]) if found else None
        for mark in _MARK.finditer(line, 0, self._longest + 1):
            name = line[: mark.start()]
            if name in self._names and (found := _BEHIND_NAME.match(line, mark.start())):
                return name, found[1], found[2], found[3]
        return None
