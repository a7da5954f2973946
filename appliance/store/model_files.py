"""Files as a whole: written, named in a hub cache, removed. Everything waits for the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from appliance.store.partial_file import sync_folder

FSCTL_SET_SPARSE = 0x000900C4
REPLACE_ATTEMPTS = 20 if sys.platform == "win32" else 1
"""Windows cannot replace a file that somebody reads at this moment."""
REPLACE_AGAIN = 0.01
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
        blob.replace(entry)
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
    except OSError:
        shutil.copyfile(old, new)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file as a whole, and wait until the disk has it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
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
    """Rename a file over another one; on Windows wait until nobody reads that. Raises OSError."""
    for attempt in range(1, REPLACE_ATTEMPTS + 1):
        try:
            source.replace(target)
            return
        except PermissionError:
            if attempt == REPLACE_ATTEMPTS:
                raise
            time.sleep(REPLACE_AGAIN)


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
