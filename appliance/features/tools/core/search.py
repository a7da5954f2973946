"""Searching: messages between the program and the process that searches; the output of ``grep -n`` in their place.

The process answers with one JSON array per line, each a `Found`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from appliance.core.capped_output import readable

Kind = Literal["file", "dir"]
Wanted = Literal["file", "dir", "all"]
KINDS: dict[str, Wanted] = {"file": "file", "dir": "dir", "all": "all"}
JUNK = frozenset(
    (
        *(".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv"),
        *("dist", "build", "target", ".cache", ".idea", ".vscode"),
    )
)
"""Folders that are listed and never entered; llama-server's (b11434)."""
BUDGET = 15.0  # seconds that one search may take, and the reading of one file
MAX_LINE = 1000  # longest line that is shown, in characters
MAX_TEXT = 64 * 1024  # characters of all matches together
LONGEST = 1 << 20  # bytes of one unfinished line that are kept
_MARK = re.compile("[:-]")
_BEHIND_NAME = re.compile(r"([:-])([0-9]+)\1(.*)", re.DOTALL)
_ALONE = re.compile(r"([0-9]+)([:-])(.*)", re.DOTALL)


class Search(Struct, frozen=True, kw_only=True):
    """Which entries below ``base`` count, and what is looked for in them.

    ``root``: nothing outside it is looked at, and no symbolic link is followed. ``listing``: entries that are known
    already, relative to ``base`` (git's, or those of another machine); None: look for them.
    """

    base: str
    root: str | None = None
    include: str = "**"
    exclude: str = ""
    kind: Wanted = "file"
    max_depth: int = 0
    listing: list[tuple[str, Kind]] | None = None
    check: bool = True  # entries of the listing count only if they exist
    limit: int = 0  # largest number of entries; 0: all
    seconds: float = BUDGET


class Grep(Struct, frozen=True, kw_only=True):
    """The search in the files, or in ``base``, if that is a file."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    numbers: bool = False
    context: int = 0
    shown: str = ""  # the name of `base` if it is the file itself
    limit: int = 100


class SearchJob(Struct, frozen=True, kw_only=True):
    search: Search
    grep: Grep | None = None


class FoundEntry(Struct, frozen=True, array_like=True, tag="entry"):
    path: str
    kind: Kind


class FoundText(Struct, frozen=True, array_like=True, tag="text"):
    """Lines of output, each with its line feed; ``matches`` of them are new ones."""

    text: str
    matches: int


class SearchEnd(Struct, frozen=True, array_like=True, tag="end"):
    """The last message: number of entries or matches. ``cut``: not all was searched; ``full``: no more are reported."""

    total: int
    cut: bool = False
    full: bool = False
    error: str = ""


Found = FoundEntry | FoundText | SearchEnd


def entry_text(path: str, kind: Kind) -> str:
    return f"{path}/" if kind == "dir" else path


def footer(total: int, shown: int, *, what: str, full: bool, cut: bool) -> str:
    """Return the notes below the results."""
    lines = ["", "---", f"Total matches: {total}"]
    if full or total > shown:
        lines.append(f"[the first {shown} {what} are shown; narrow the search to see others]")
    if cut:
        lines.append("[results truncated: not everything could be looked at within the time there is]")
    return "\n".join(lines) + "\n"


class GrepText:
    """The lines that a search shows, in grep's form: name, mark and text, ``:`` for a match and ``-`` beside one."""

    def __init__(self, *, numbers: bool, limit: int) -> None:
        self.matches = 0
        self.full = False
        self._numbers = numbers
        self._limit = limit
        self._size = 0

    def line(self, name: str, mark: str, number: object, text: str) -> str:
        """Return the line as it is shown; nothing, and `full`, for a match too many."""
        if mark == ":" and (self.matches == self._limit or self._size > MAX_TEXT):
            self.full = True
            return ""
        self.matches += mark == ":"
        where = f"{name}{mark}{number}{mark}" if self._numbers else f"{name}{mark}"
        shown = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}..."
        self._size += len(where) + len(shown) + 1
        return f"{where}{shown}\n"


class GrepLines(GrepText):
    """``names``: the files that were searched, which lines of output begin with; empty: ``shown`` was, without."""

    def __init__(self, names: Collection[str], shown: str, *, numbers: bool, limit: int) -> None:
        super().__init__(numbers=numbers, limit=limit)
        self.text = ""
        self._names = frozenset(names)
        self._longest = max(map(len, names), default=0)
        self._shown = shown
        self._rest = b""
        self._parts: list[str] = []

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
        elif (found := self._read(line)) is not None:  # else it is grep's own words, of binary files
            self._parts.append(self.line(*found))

    def _read(self, line: str) -> tuple[str, str, str, str] | None:
        """Split into name, mark, number and text. A name may contain colons; only searched names count."""
        if not self._names:
            found = _ALONE.match(line)
            return (self._shown, found[2], found[1], found[3]) if found else None
        for mark in _MARK.finditer(line, 0, self._longest + 1):
            name = line[: mark.start()]
            if name in self._names and (found := _BEHIND_NAME.match(line, mark.start())):
                return name, found[1], found[2], found[3]
        return None
