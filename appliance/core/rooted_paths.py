"""Paths from outside, as text: `platform.rooted_files` finds out where one leads on the disk, and holds on to that."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_PARTS = 256  # names in one path; each costs an open folder while it is walked
RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com\d|lpt\d)(?: *\..*)?", re.IGNORECASE)
"""Names that are devices on Windows."""


class BadPath(ValueError):
    """A path cannot be used; the message says why, and names it."""


class Outside(BadPath):
    """A path leads out of the folder to which the tools are confined."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the path is outside the folder that the tools are confined to: {path}")


def check_path(path: str) -> None:
    """Raises BadPath for paths that no system call accepts."""
    if "\0" in path:
        raise BadPath("a path cannot hold a zero byte")
    if not path:
        raise BadPath("the path is empty")


def expanded(path: str, home: str) -> str:
    """Replace a leading ``~`` by the home folder; ``~user`` stays as it is."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path


def parts_below(root: str, path: str) -> list[str]:
    """Return the names from ``root`` to a path, ``..`` as written. Raises Outside, and BadPath for too many names."""
    start, names = _names(root), _names(path)
    if names[: len(start)] != start:
        raise Outside(path)
    return checked_parts(names[len(start) :], path)


def checked_parts(names: Sequence[str], path: str) -> list[str]:
    if len(names) > MAX_PARTS:
        raise BadPath(f"the path has more than {MAX_PARTS} names in it: {path[:80]}...")
    return list(names)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
