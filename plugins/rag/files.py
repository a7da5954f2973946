"""The files in the document folders, and the text of one. Files only: nothing is followed out of a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

TEXT_ENDINGS = frozenset(
    (".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".xhtml", ".csv", ".tsv", ".json", ".jsonl", ".log", ".xml")
)
"""Files that are text in any encoding; other files that are not UTF-8 count as binary."""


class NoText(Exception):
    """A file is left out; the message is the reason, in one or two words."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file in a folder. ``name`` is relative to its folder, with the folder's own name in front."""

    path: str
    name: str
    size: int
    mtime_ns: int


def find(places: Sequence[Path], exclude: Sequence[str]) -> Iterator[Found]:
    """Return every plain file in the folders, or itself one of ``places``, in order.

    Hidden files, links and names like those in ``exclude`` are left out.
    """
    for place in places:
        if place.is_file():
            yield from _found(place, place.name)
        for parent, inner, names in os.walk(place):
            inner[:] = sorted(name for name in inner if _wanted(name, exclude))
            for name in sorted(name for name in names if _wanted(name, exclude)):
                path = Path(parent, name)
                yield from _found(path, Path(place.name, path.relative_to(place)).as_posix())


def _found(path: Path, name: str) -> Iterator[Found]:
    try:
        told = path.lstat()
    except OSError:
        return  # gone since its folder was read
    if stat.S_ISREG(told.st_mode):
        yield Found(path=str(path), name=name, size=told.st_size, mtime_ns=told.st_mtime_ns)


def _wanted(name: str, exclude: Sequence[str]) -> bool:
    return not name.startswith(".") and not any(fnmatch(name, pattern) for pattern in exclude)


def decode(name: str, content: bytes) -> str:
    """Return the text of a file. Raises NoText."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encodings = ["utf-16"]
    elif b"\0" in content[:8192]:
        raise NoText("binary")
    else:
        encodings = ["utf-8-sig", "cp1252"] if Path(name).suffix.lower() in TEXT_ENDINGS else ["utf-8-sig"]
    for encoding in encodings:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise NoText("binary")
