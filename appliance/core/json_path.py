"""Paths into JSON as llama-swap's filters write them.

Parts are joined by dots; a number is also an index; ``-1`` appends to an array and deletes its last element; ``\\``
takes the meaning from the next character; ``:`` before a number makes it a key. ``* ? # | @`` are patterns there: here
they are not followed, such a path sets what is spelled so, and creates and deletes nothing.
"""

from __future__ import annotations

import re

from msgspec import Struct

MAX_DEPTH = 32
"""Largest number of parts in a path; request parameters are not nested deeper, and each part costs a look at a
level.
"""
MAX_INDEX = 1000
"""Highest index in a path: setting it fills the array up to it with nulls."""

QUERY = "*?#|@"
_UNENCODABLE = re.compile("[\ud800-\udfff]")


class Step(Struct, frozen=True):
    """One part of a path."""

    name: bytes
    """The key that the part means."""
    index: int | None = None
    """The index that the part means in an array, if any; -1 is the end."""


class Path(Struct, frozen=True):
    steps: tuple[Step, ...]
    literal: bool = True
    """True without query characters; a path with them reaches existing values but creates none."""


class _Part(Struct):
    name: str = ""
    key_only: bool = False
    literal: bool = True


def check_path(path: str) -> str | None:
    """Return the problem of a path in a configuration as one sentence, or None. A bad path creates and deletes
    nothing.
    """
    parsed = parse_path(path)
    if parsed is not None and parsed.literal:
        return None
    if parsed is not None:
        marks = " ".join(QUERY)
        return f"'{path}' is a pattern, and patterns are not followed; write \\ before each of {marks} it contains"
    parts = _split(path)
    if len(parts) > MAX_DEPTH:
        return f"the path has {len(parts)} parts, more than {MAX_DEPTH}; set the whole value further up instead"
    if not all(part.name for part in parts):
        return f"'{path}' has an empty part; write names joined by single dots, as in a.b"
    if _UNENCODABLE.search(path):
        return f"{path!a} has half a surrogate pair; write the character itself"
    return f"'{path}' has an index above {MAX_INDEX}; write ':' before a number that is a key"


def parse_path(path: str) -> Path | None:
    """Parse a path; None if it cannot be used, and `check_path` says why."""
    parts = _split(path)
    if len(parts) > MAX_DEPTH or _UNENCODABLE.search(path):
        return None
    steps: list[Step] = []
    literal = True
    for part in parts:
        index = None if part.key_only else -1 if part.name == "-1" else _number(part.name)
        if not part.name or (index is not None and index > MAX_INDEX):
            return None
        steps.append(Step(part.name.encode(), index))
        literal = literal and part.literal
    return Path(tuple(steps), literal)


def _split(path: str) -> list[_Part]:
    part = _Part()
    parts = [part]
    fresh = True
    characters = iter(path)
    for character in characters:
        if character == ".":
            part = _Part()
            parts.append(part)
        elif character == ":" and fresh:
            part.key_only = True
        elif character == "\\":
            part.name += next(characters, "")
        else:
            part.name += character
            part.literal = part.literal and character not in QUERY
        fresh = character == "."
    return parts


def _number(name: str) -> int | None:
    if not (name.isascii() and name.isdigit()):
        return None
    return int(name) if len(name) < 10 else MAX_INDEX + 1  # as good as any other that is too large
