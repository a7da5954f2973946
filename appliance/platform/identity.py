"""Root becomes another user for the rest of a command, and may still read what root can.

A command for the service must leave nothing behind that belongs to root: the service could neither change nor delete
it. But its input (an archive in root's home, a bundle on a USB drive) may be readable by root alone. Linux lets a
thread keep one capability when it changes its user (capabilities(7), prctl(2)). Threads begun later inherit it.
Programs that it executes do not, so an engine on trial has no more rights than in the service.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_PR_SET_KEEPCAPS = 8
_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 1 << 2
_PR_SET_DUMPABLE = 4
_OF_THE_CALLER = ("XDG_", "HF_", "LLAMA_", "DBUS_", "SUDO_")
"""Beginnings of the names of variables that say where the caller's own files are, or how they are made."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def become(user: str, environment: Mapping[str, str]) -> None:
    """Go on as this user, with its groups, in its environment. Only root can, and only before any thread.

    Raises KeyError for an unknown user, and OSError.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no such change of user")
    import pwd

    account = pwd.getpwnam(user)
    libc = ctypes.CDLL(None, use_errno=True)
    keeps = sys.platform == "linux" and libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if keeps:
        sets = (_Sets * 2)(_Sets(_CAP_DAC_READ_SEARCH, _CAP_DAC_READ_SEARCH, 0))
        if libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), sets) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"capset: {os.strerror(number)}")
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else its own files below /proc would belong to root
    os.umask(0o077)
    live_in({"USER": user, "LOGNAME": user, **environment})


def live_in(environment: Mapping[str, str]) -> None:
    """Use the files that ``environment`` names, as oneself; the caller's own variables for files do not count."""
    for name in [name for name in os.environ if name.startswith(_OF_THE_CALLER)]:
        del os.environ[name]
    os.environ.update(environment)
