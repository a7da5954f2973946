"""Files as a whole: written, named in a hub cache, removed. Everything waits for the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

FSCTL_SET_SPARSE = 0x000900C4
ATTEMPTS = 20 if sys.platform == "win32" else 1
"""Windows cannot rename, replace or remove a file that somebody reads at this moment."""
AGAIN = 0.01
"""Seconds between two attempts."""


def free_bytes(folder: Path) -> int:
    """Return the free space where ``folder`` is or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


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


def open_private(path: Path) -> IO[bytes]:
    """Write a file anew that only this user can read, also if it was there for others. Raises OSError."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600)
        if sys.platform != "win32":
            os.fchmod(descriptor, 0o600)
        return descriptor

    return open(path, "wb", opener=opener)


def write_whole(path: Path, data: bytes, *, private: bool = False, like: os.stat_result | None = None) -> None:
    """Replace a small file as a whole, and wait until the disk has it. Raises OSError.

    ``private``: only this user can read it. ``like``: it gets this owner and these permissions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        with open_private(fresh) if private or like is not None else fresh.open("wb") as file:
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


def remove(path: Path) -> int:
    """Remove a file, or a link and never its target. Return the number of bytes freed."""
    try:
        found = path.lstat()
        path.unlink()
    except FileNotFoundError:
        return 0
    return found.st_size if found.st_nlink == 1 and not path.is_symlink() else 0


def remove_empty(folder: Path, root: Path) -> None:
    """Remove ``folder`` and those above it, as far as they are empty and below ``root``."""
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
