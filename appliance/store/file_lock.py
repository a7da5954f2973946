"""Lets one program at a time, of all that agree on a file; the system ends the lock with the process that holds it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

AGAIN = 0.01
"""Seconds between two attempts."""

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _free(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

    TAKEN: tuple[type[OSError], ...] = (PermissionError,)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _free(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    TAKEN = (BlockingIOError,)


@contextmanager
def file_lock(path: Path, seconds: float) -> Generator[bool]:
    """Hold the lock file at ``path`` for the block; it stays behind, empty. Blocks the thread.

    Yields True if it is held: not when somebody else keeps it for ``seconds``, or where the file system has no locks.
    Raises OSError when the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        held = _wait(descriptor, seconds)
        try:
            yield held
        finally:
            if held:
                _free(descriptor)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            _take(descriptor)
        except TAKEN:
            if time.monotonic() > until:
                return False
            time.sleep(AGAIN)
        except OSError:
            return False
        else:
            return True
