"""The only way this room touches the disk: joining names, listing folders, opening regular files.

Refuses to follow a name out of its folder, and to open what is not a regular file: a FIFO called ``model.gguf`` would
block the scan for ever, a device might do worse.
"""

from __future__ import annotations

import os
import stat
import sys
from io import FileIO
from pathlib import Path

if sys.platform == "win32":
    OPEN_FLAGS = os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT
else:
    OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

MAX_ENTRIES = 100_000
"""Number of entries of one folder that are read; a folder with more is not a models folder."""

FORBIDDEN = frozenset("/\\:\0")
"""Separators of every system, and the drive and stream mark of Windows."""


class UnsafeName(ValueError):
    """A name that would lead out of the folder to which it is joined."""


class NotRegular(OSError):
    """Anything other than a regular file."""

    def __init__(self) -> None:
        super().__init__(None, "it is not a regular file")


def join_inside(root: Path, *names: str) -> Path:
    """Join names from outside to a folder. Each must be one plain component. Raises UnsafeName."""
    for name in names:
        if name in ("", ".", "..") or not FORBIDDEN.isdisjoint(name):
            raise UnsafeName(name)
    return root.joinpath(*names)


def list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder, each sorted; links count as what they lead to.

    A link that leads nowhere counts as a file. Raises OSError if the folder itself cannot be read.
    """
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
            (folders if _is_folder(entry) else files).append(entry.name)
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def stat_regular(path: str) -> os.stat_result:
    """Raises OSError, NotRegular among them."""
    found = os.stat(path)  # noqa: PTH116  -- ten thousand Path objects cost more than the calls
    if not stat.S_ISREG(found.st_mode):
        raise NotRegular
    return found


def open_regular(path: str) -> FileIO:
    """Open for reading without ever waiting; the open file is checked again, because the name may lead elsewhere by
    then.
    """
    stat_regular(path)
    file = FileIO(os.open(path, OPEN_FLAGS), closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular
    return file


def read_start(path: Path, count: int) -> bytes:
    """Return the first bytes of a small text file. Raises OSError."""
    with open_regular(str(path)) as file:
        return file.read(count)


def why(error: OSError) -> str:
    """Return the reason without number and path, as part of a sentence."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist, or is a link to a file that does not"
    return error.strerror or str(error)
