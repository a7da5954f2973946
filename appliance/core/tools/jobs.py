"""The messages between the program and the process that searches."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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
BUDGET = 15.0
"""Seconds that one search may take."""
MAX_LINE = 1000
"""Longest line that is shown, in characters."""
MAX_TEXT = 64 * 1024
"""Characters of all matches together."""


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
    check: bool = True
    """Entries of the listing count only if they exist."""
    limit: int = 0
    """Largest number of entries; 0: all."""
    seconds: float = BUDGET


class Grep(Struct, frozen=True, kw_only=True):
    """The search in the files, or in ``base``, if that is a file."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    numbers: bool = False
    context: int = 0
    shown: str = ""
    """The name of ``base`` if it is the file itself."""
    limit: int = 100


class Job(Struct, frozen=True, kw_only=True):
    search: Search
    grep: Grep | None = None


# ---- what comes back, one JSON array per line ------------------------------------------------------------------------


class Entry(Struct, frozen=True, array_like=True, tag="entry"):
    path: str
    kind: Kind


class Text(Struct, frozen=True, array_like=True, tag="text"):
    """Lines of output, each with its line feed; ``matches`` of them are new ones."""

    text: str
    matches: int


class End(Struct, frozen=True, array_like=True, tag="end"):
    """The last message. ``total`` entries or matches; ``cut``: not everything was searched; ``full``: no more are
    reported.
    """

    total: int
    cut: bool = False
    full: bool = False
    error: str = ""


Found = Entry | Text | End


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
