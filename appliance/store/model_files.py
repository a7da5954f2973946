"""Files as a whole: written, named in a hub cache, removed. Everything waits for the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable
from io import FileIO
from pathlib import Path
from typing import IO, Literal, NamedTuple

if sys.platform == "win32":
    OPEN_FLAGS, NO_WAIT = os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT, 0
else:
    NO_WAIT = os.O_NONBLOCK | os.O_NOCTTY
    OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | NO_WAIT

FSCTL_SET_SPARSE = 0x000900C4
ATTEMPTS = 20 if sys.platform == "win32" else 1
"""Windows cannot rename, replace or remove a file that somebody reads at this moment."""
AGAIN = 0.01
"""Seconds between two attempts."""
BLOCK = 512
"""Bytes of the unit in which POSIX counts what a file takes."""


class NotRegular(OSError):
    """Anything other than a regular file."""

    def __init__(self) -> None:
        super().__init__(None, "it is not a regular file")


class Taken(NamedTuple):
    """The contents of a folder, or a file."""

    bytes: int
    files: int


class Space(NamedTuple):
    """A file system. ``device`` tells it from others."""

    device: int
    total: int
    free: int


def space_of(folder: Path) -> Space:
    """Return the file system where ``folder`` is or will be. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return Space(folder.stat().st_dev, usage.total, usage.free)


def free_bytes(folder: Path) -> int:
    """Return the free space where ``folder`` is or will be. Raises OSError."""
    return space_of(folder).free


def taken_in(path: Path, beside: Collection[str] = ()) -> Taken:
    """Measure a file, or a folder with everything below it but the folders ``beside``. What cannot be read is left out.

    Links are not followed, and a file with two names counts once.
    """
    taken, files, seen = 0, 0, set[tuple[int, int]]()
    waiting = [str(path)]
    while waiting:
        place = waiting.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(place)
            if stat.S_ISDIR(found.st_mode):
                waiting += [inner for inner in _listed(place) if inner not in beside]
            elif found.st_nlink == 1 or (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                taken, files = taken + occupied(found), files + 1
    return Taken(taken, files)


def _listed(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries]


def link(blob: Path, entry: Path) -> None:
    """Make ``entry`` lead to ``blob``; where links cannot be made the blob itself moves there, as in huggingface_hub.

    An existing entry with that target stays. Raises OSError.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, entry.parent)
    if entry.is_symlink() and os.readlink(entry) == target:  # noqa: PTH115  a Path would change how it is written
        return
    if not blob.exists() and entry.is_file():
        return  # it was moved there by an earlier run
    fresh = entry.with_name(f".{entry.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        fresh.symlink_to(target)
    except OSError:
        replace(blob, entry)
    else:
        fresh.replace(entry)
    sync_folder(entry.parent)


def share(old: Path, new: Path) -> None:
    """Give a finished file a second name in the same cache, without a second copy if possible."""
    if new.exists() or new.is_symlink():
        return
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_symlink():
        link(old.parent / old.readlink(), new)
        return
    try:
        new.hardlink_to(old)
    except OSError:  # as on FAT
        fresh = new.with_name(f".{new.name}.new")
        try:
            shutil.copyfile(old, fresh)
            fresh.replace(new)
        finally:
            fresh.unlink(missing_ok=True)


def stat_regular(path: str) -> os.stat_result:
    """Raises OSError, NotRegular among them."""
    found = os.stat(path)  # noqa: PTH116  -- ten thousand Path objects cost more than the calls
    if not stat.S_ISREG(found.st_mode):
        raise NotRegular
    return found


def open_regular(path: str) -> FileIO:
    """Open for reading without ever waiting; the open file is checked again: the name may lead elsewhere by then."""
    stat_regular(path)
    return checked(FileIO(os.open(path, OPEN_FLAGS), closefd=True))


def checked(file: FileIO) -> FileIO:
    """Return an open file that is a regular one; another one is closed. Raises NotRegular."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular
    return file


def read_start(path: Path, count: int) -> bytes:
    """Return the first bytes of a small text file. Raises OSError."""
    with open_regular(str(path)) as file:
        return file.read(count)


def open_private(path: Path, mode: Literal["wb", "xb"] = "wb") -> IO[bytes]:
    """Write a file anew that only this user can read, also if it was there for others; "xb": it must not be there.

    Raises OSError.
    """

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | NO_WAIT, 0o600)
        if sys.platform != "win32":
            os.fchmod(descriptor, 0o600)
        return descriptor

    return open(path, mode, opener=opener)


def write_whole(path: Path, data: bytes, *, private: bool = False, like: os.stat_result | None = None) -> None:
    """Replace a small file as a whole, and wait until the disk has it. Raises OSError.

    ``private``: only this user can read it. ``like``: it gets this owner and these permissions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # a link would lead elsewhere, and a pipe would wait for a reader
        with open_private(fresh, "xb") if private or like is not None else fresh.open("xb") as file:
            if like is not None and sys.platform != "win32":
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot be asked to
        sync_folder(path.parent)


def replace(source: Path, target: Path) -> None:
    """Rename a file over another one; on Windows wait until nobody reads either. Raises OSError."""
    _once_unread(lambda: source.replace(target))


def unlink(path: Path) -> None:
    """Remove a file that may not be there; on Windows wait until nobody reads it. Raises OSError."""
    _once_unread(lambda: path.unlink(missing_ok=True))


def _once_unread(act: Callable[[], object]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            act()
            return
        except PermissionError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(AGAIN)


def sync_folder(folder: Path) -> None:
    """Write a new name in this folder to the disk. Windows does so by itself, and cannot be asked to."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sparse(path: Path, head: bytes, zeros: int) -> None:
    """Write ``head`` and ``zeros`` zero bytes behind it, which take no room on most disks. Raises OSError.

    The file is there completely or not at all.

    Where the file system has no holes, the zeros take up room.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            if sys.platform == "win32":
                _make_sparse(file.fileno())
            file.write(head)
            file.truncate(len(head) + zeros)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _make_sparse(descriptor: int) -> None:
    """NTFS keeps holes only in files that are marked. FAT cannot: then the zeros are written."""
    assert sys.platform == "win32"
    import ctypes  # few programs write such a file
    import msvcrt
    from ctypes import wintypes

    control = ctypes.WinDLL("kernel32", use_last_error=True).DeviceIoControl
    told = wintypes.DWORD()
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
    control(handle, FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(told), None)


def occupied(found: os.stat_result) -> int:
    """Return the bytes that a file takes on its disk, which for one with holes are fewer than it has."""
    return found.st_size if sys.platform == "win32" else found.st_blocks * BLOCK


def freed_by(paths: Iterable[Path]) -> int:
    """Return the bytes that the disk gets back when these names go. Raises OSError.

    A file with a name elsewhere stays.
    """
    links: dict[tuple[int, int], list[os.stat_result]] = {}
    for path in dict.fromkeys(paths):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            links.setdefault((found.st_dev, found.st_ino), []).append(found)
    return sum(occupied(names[0]) for names in links.values() if len(names) >= names[0].st_nlink)


def remove_empty(folder: Path, root: Path) -> None:
    """Remove ``folder`` and those above it, as far as they are empty and below ``root``."""
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
