"""This system's own module, `here`, which describes the machine; its free resources; whether it was asleep."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.core.machine_look import platform_of, threads_for
from appliance.platform.groups_linux import quota

if TYPE_CHECKING:
    import ctypes

if sys.platform == "darwin":
    from appliance.platform import machine_macos as here
elif sys.platform == "win32":
    from appliance.platform import machine_windows as here
else:
    from appliance.platform import machine_linux as here

__all__ = [
    "SLEPT",
    "Suspends",
    "engine_environment",
    "engine_threads",
    "free_memory",
    "give_back_memory",
    "group_memory",
    "here",
    "own_bytes",
    "raise_open_files",
    "resident_bytes",
    "share_heap",
    "this_platform",
    "total_memory",
]

SLEPT = 5.0
"""Seconds by which the clocks must differ: some of them go in steps, and each has its own drift."""

Clock = Callable[[], float]
OWN_FILES = 192
"""Descriptors for everything but clients with a place: model processes (three each), the stores, the log, tools, peers,
and clients without a place, which get a 503. A program that may have less than twice as many keeps half, and `LOOKS`:
37 are open with one model that runs.
"""
LOOKS = 24
"""Descriptors that are open for moments, while processes look at engines."""
PER_CLIENT = 2
"""A client, and its connection to a model process."""
M_ARENA_MAX = -8
"""Source: glibc's malloc.h."""
MACOS_FILES = 8192
"""macOS may allow a process no more than 10,240, although its hard limit says more."""


def this_platform() -> str:
    """Return this machine's platform, ``linux-x64``."""
    return platform_of(sys.platform, platform.machine())


class Suspends:
    """Knows whether the machine was asleep since the last question (or since it was made)."""

    def __init__(self, running: Clock = here.without_sleep, always: Clock = here.with_sleep) -> None:
        self._running, self._always = running, always
        self._behind = always() - running()

    def happened(self) -> bool:
        """True if it was asleep for `SLEPT` seconds or more."""
        # One clock stands still during sleep, and the other goes on. Their distance grows by the sleep alone: a task
        # that is only late moves both alike.
        before, self._behind = self._behind, self._always() - self._running()
        return self._behind - before >= SLEPT


def engine_threads() -> int:
    """Threads for one CPU model process, by what this process may use now: see `threads_for`."""
    return _threads_in(int(time.monotonic()))


def engine_environment() -> dict[str, str]:
    """Variables for a command of a user's own that may be llama-server: how many threads it may have, if it would
    choose more by the machine's cores. A flag of the command goes before it.
    """
    return {"LLAMA_ARG_THREADS": str(engine_threads())} if here.cores() < (os.cpu_count() or 1) else {}


@lru_cache(maxsize=1)
def _threads_in(second: int) -> int:
    """Limits change while the program runs, and a list of models asks for each of them."""
    return threads_for(here.processors(), _physical(), quota(Path("/")))


@cache
def _physical() -> int | None:
    import psutil  # seven milliseconds, which a server that has started no model saves

    return psutil.cpu_count(logical=False)


def files_for(clients: int) -> int:
    """Return the open files with which a program can have so many clients."""
    return OWN_FILES + PER_CLIENT * clients


def raise_open_files(clients: int) -> int:
    """Raise the soft limit of open files for so many clients, if the hard limit allows it. Return how many have room.

    On Windows sockets have no such limit.
    """
    if sys.platform == "win32":
        return clients
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_for(clients) if hard == resource.RLIM_INFINITY else min(files_for(clients), hard)
    found = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    for files in (wanted, MACOS_FILES):
        if found < files <= wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
                found = files
    return min(clients, max(1, (found - min(OWN_FILES, found // 2 + LOOKS)) // PER_CLIENT))


def free_memory() -> int:
    """Bytes that a new program could have: what the system has left, or the container."""
    import psutil  # seven milliseconds, which a server that has started no model saves

    return min(psutil.virtual_memory().available, here.memory_limits()[1])


def total_memory() -> int:
    """Bytes that all programs can have together: the system's memory, or the container's."""
    import psutil

    return min(psutil.virtual_memory().total, here.memory_limits()[0])


def group_memory() -> tuple[int, int] | None:
    """Bytes that this program's group may have, and those that are unused; None: it may have all of the machine's."""
    import psutil

    limit, left = here.memory_limits()
    return (limit, left) if limit < psutil.virtual_memory().total else None


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in RAM, pages shared with others included. None when it is gone or not ours to see."""
    import psutil  # as for `_physical`

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


# ---- this program's own memory ---------------------------------------------------------------------------------------


def own_bytes() -> int:
    """Return the bytes of this process in RAM; 0 where `give_back_memory` has nothing to do."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  psutil would take a megabyte of them
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def share_heap() -> None:
    """Have glibc keep one heap for all threads: with one for each, an idle server takes half a megabyte more.

    Python's lock lets one thread allocate at a time anyway. Call it before the first thread.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # another C library has one heap
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def give_back_memory(beyond: int = 0) -> int:
    """Return freed memory to the system, which glibc keeps otherwise, if it is more than so many bytes.

    Return the bytes in RAM that are not in use afterwards, as far as glibc knows. It takes milliseconds: call it in a
    thread.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library has neither the function nor the need
        if _idle_bytes(libc) > beyond:
            libc.malloc_trim(0)
    return _idle_bytes(libc)


def _idle_bytes(libc: ctypes.CDLL) -> int:
    """Before glibc 2.33 all that is in RAM counts."""
    import ctypes

    try:
        ask = libc.mallinfo2
    except AttributeError:
        return own_bytes()
    names = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    ask.restype = type("Mallinfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
    found = ask()
    return own_bytes() - found.uordblks - found.hblkhd
