"""Files on Windows: the same names as `platform.rooted_files_posix`. Not exercised on a Windows machine yet.

There are no descriptors of folders here to walk by. Below a root a file is opened first, and the open handle is asked
afterwards where it really is, before a byte is read or written: a file outside is closed again. That a file outside
was created empty, by somebody who swaps a folder for a link at the right instant, cannot be ruled out.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager

from appliance.core.rooted_paths import BadPath, Outside

assert sys.platform == "win32"

import ctypes  # noqa: E402
import msvcrt  # noqa: E402
from ctypes import wintypes  # noqa: E402

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_LONGEST = 32768
_DEVICES = ("\\\\.\\", "\\\\?\\")


def real_root(path: str) -> str:
    """Return a root for comparisons with paths in it. Raises OSError."""
    real = os.path.realpath(path, strict=True)
    if not os.path.isdir(real):  # noqa: PTH112
        raise NotADirectoryError(20, "it is not a folder", path)
    return real


def resolved(cwd: str | None, path: str, root: str | None) -> str:
    """Return an absolute path without dots, as far as text goes."""
    here = root or os.getcwd()  # noqa: PTH109
    return os.path.normpath(os.path.join(here, cwd or here, path))  # noqa: PTH118


@contextmanager
def open_regular(path: str, root: str | None, *, write: bool = False) -> Generator[int]:
    """As on POSIX. Raises OSError and BadPath."""
    if path.startswith(_DEVICES):
        raise BadPath(f"it is a device, not a regular file: {path}")
    if root is not None:
        _check_inside(root, os.path.realpath(path), path)
    if write:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    if os.path.isdir(path):  # noqa: PTH112  opening it would be called forbidden
        raise BadPath(f"it is a folder, not a regular file: {path}")
    fd = os.open(path, os.O_BINARY | os.O_NOINHERIT | (os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY), 0o666)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadPath(f"it is not a regular file: {path}")
        if root is not None:
            _check_inside(root, _final_path(fd), path)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_folder(path: str, root: str | None) -> Generator[str]:
    """Return the folder's path; there is nothing to hold on to. Raises OSError and BadPath."""
    if root is not None:
        _check_inside(root, os.path.realpath(path), path)
    if not os.path.isdir(path):  # noqa: PTH112
        raise NotADirectoryError(20, "it is not a folder", path)
    yield path


def _check_inside(root: str, real: str, path: str) -> None:
    try:
        inside = os.path.commonpath((os.path.normcase(root), os.path.normcase(real))) == os.path.normcase(root)
    except ValueError:  # on different drives
        inside = False
    if not inside:
        raise Outside(path)


def _final_path(fd: int) -> str:
    """Return the real path of an open file (GetFinalPathNameByHandleW), without the prefix of extended paths."""
    buffer = ctypes.create_unicode_buffer(_LONGEST)
    size = _kernel32.GetFinalPathNameByHandleW(wintypes.HANDLE(msvcrt.get_osfhandle(fd)), buffer, _LONGEST, 0)
    if not 0 < size < _LONGEST:
        raise ctypes.WinError(ctypes.get_last_error())
    return buffer.value.removeprefix("\\\\?\\")
