"""Paths that others name, as text. What they are on the disk is for `tools.files` to find out, and to hold on to."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PARTS = 256
"""Names in one path; each costs an open folder while it is walked."""


class BadPath(ValueError):
    """A path that cannot be used; the message says why, and names it."""


class Outside(BadPath):
    """A path that leads out of the folder the tools are confined to."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the path is outside the folder that the tools are confined to: {path}")


def check_path(path: str) -> None:
    """Raises BadPath for what no system call takes."""
    if "\0" in path:
        raise BadPath("a path cannot hold a zero byte")
    if not path:
        raise BadPath("the path is empty")


def expanded(path: str, home: str) -> str:
    """With the home folder in place of a leading ``~``; ``~user`` stays as it is."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path


def joined(cwd: str, path: str) -> str:
    """An absolute POSIX path as it is; any other below ``cwd``."""
    return path if path.startswith("/") else f"{cwd.rstrip('/')}/{path}"


def parts_below(root: str, path: str) -> list[str]:
    """The names that lead from ``root`` to an absolute path, ``..`` among them as they were written.

    Raises Outside where the path does not begin with ``root``, BadPath where it has too many names.
    """
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
