"""A file that begins with some bytes and continues with zeros, which take no room on most disks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FSCTL_SET_SPARSE = 0x000900C4


def write_sparse(path: Path, head: bytes, zeros: int) -> None:
    """Write ``head`` and ``zeros`` zero bytes behind it, completely or not at all. Raises OSError.

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


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _control = ctypes.WinDLL("kernel32", use_last_error=True).DeviceIoControl

    def _make_sparse(descriptor: int) -> None:
        """NTFS keeps holes only in files that are marked. FAT cannot: then the zeros are written."""
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        told = wintypes.DWORD()
        _control(handle, FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(told), None)
