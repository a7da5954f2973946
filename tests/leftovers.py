"""What a test process holds at one moment, and what of it was not there before."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil
from waiting import until

MARK = "LLAMA_APPLIANCE_TEST_RUN"
"""An environment variable that every process begun by the tests inherits, so that orphans are found too."""

HARMLESS_THREADS = ("Trio thread", "pytest_timeout", "watchdog")
"""Name prefixes: Trio keeps idle worker threads for ten seconds."""


class Leftovers(NamedTuple):
    """Compare two of these. Entries are lines for the reader of a failure."""

    processes: dict[int, str]
    ports: frozenset[str]
    threads: frozenset[str]
    descriptors: dict[int, str]

    @classmethod
    def now(cls) -> Leftovers:
        """What is held now, garbage collected first. A few milliseconds, more on a machine with many processes."""
        gc.collect()
        return cls(processes(), _ports(), _threads(), _descriptors())

    def since(self, before: Leftovers) -> list[str]:
        """What is new since ``before``, one line each."""
        lines = [f"process {pid}: {command}" for pid, command in self.processes.items() if pid not in before.processes]
        lines += [f"listening port {port}" for port in self.ports - before.ports]
        lines += [f"thread {name}" for name in self.threads - before.threads]
        lines += [
            f"file descriptor {number}: {target}"
            for number, target in self.descriptors.items()
            if before.descriptors.get(number) is None
        ]
        return lines


def processes() -> dict[int, str]:
    """Those that this test run has begun, orphans included, by number."""
    mark = os.environ.get(MARK, "")
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            ours = process.ppid() == os.getpid() or process.environ().get(MARK) == mark
            if ours and process.pid != os.getpid():
                found[process.pid] = " ".join(process.cmdline()) or process.status()
        except psutil.Error:
            continue  # ended, or another user's
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ports() -> frozenset[str]:
    return _listening() if _ports_are_told() else frozenset()


def _listening() -> frozenset[str]:
    own = psutil.Process().net_connections(kind="tcp")
    return frozenset(f"{c.laddr.ip}:{c.laddr.port}" for c in own if c.status == psutil.CONN_LISTEN)


@cache
def _ports_are_told() -> bool:
    """Return whether the system tells whose a port is. Only wine does not tell, and takes five seconds for a look."""
    if sys.platform != "win32":
        return True
    with socket.create_server(("127.0.0.1", 0)) as ours:
        return f"127.0.0.1:{ours.getsockname()[1]}" in _listening()


def _threads() -> frozenset[str]:
    return frozenset(
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(HARMLESS_THREADS)
    )


def _descriptors() -> dict[int, str]:
    if sys.platform != "linux":
        return {}  # other systems do not say what a descriptor is
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if not target.startswith(("/dev/", "/proc/")):
            found[int(entry.name)] = target
    return found


async def wait_no_process(word: str) -> None:
    """Until no process has ``word`` in its command line."""
    await until(lambda: all(word not in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])))
