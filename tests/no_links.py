"""Runs a command for which the system makes no symbolic links, as Windows does for most users.

    python no_links.py COMMAND [WORD...]

A filter of system calls (seccomp) refuses them with EPERM, for the command and all that it starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CALLS = {"x86_64": (88, 266), "aarch64": (36,)}
"""The numbers of symlink and symlinkat, by machine."""
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


class Program(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse(calls: tuple[int, ...]) -> None:
    """From now on these system calls fail, for good."""
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    steps += [(IF_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "the system takes no filter")


if __name__ == "__main__":
    refuse(CALLS[platform.machine()])
    os.execv(sys.argv[1], sys.argv[1:])
