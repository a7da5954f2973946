"""What the program takes: the most memory of this process, of a process that reads a file, and the longest hold of
the event loop.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from appliance.features.conversations import file_process
from appliance.features.conversations.file_process import HEAD, FileVerdict, Task
from appliance.platform.children import own_process

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(*, anew: bool = False) -> int:
    """The most bytes that this process has had since the last time with ``anew``; 0 where no system tells."""
    if anew and CLEAR.exists():
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # what is free in this process could be taken unseen
        CLEAR.write_text("5", "utf-8")
    found = re.search(r"VmHWM:\s+(\d+)", STATUS.read_text("utf-8")) if STATUS.exists() else None
    return int(found[1]) << 10 if found else 0


LAUNCH = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A process counts what the one had that it was made from, so that has to be a small one."""


def read_file_apart(task: Task, data: bytes) -> tuple[FileVerdict, bytes, int]:
    """Run the process that reads files of strangers: its verdict, its result, and the most bytes that it had."""
    words = [sys.executable, "-I", "-S", "-c", LAUNCH, *own_process(file_process.__name__, task)]
    done = subprocess.run(words, input=data, capture_output=True, check=True, timeout=120)
    end = HEAD + int.from_bytes(done.stdout[:HEAD])
    most = int(done.stderr.split()[-1]) << 10
    return msgspec.json.decode(done.stdout[HEAD:end], type=FileVerdict), done.stdout[end:], most


class Holds:
    """``longest``: seconds for which nothing else in the event loop had its turn, though it could have run."""

    longest = 0.0


@asynccontextmanager
async def watched_loop() -> AsyncGenerator[Holds]:
    """Look at the loop all the time. A hold takes time, and a processor of this process for that time.

    So time counts as held only as far as the process computed meanwhile, and this thread was not waiting for a
    processor that others had.
    """
    holds, waited = Holds(), Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def look() -> tuple[float, float, float]:
        delay = int(waited.read_text("ascii").split()[1]) / 1e9 if waited.exists() else 0.0
        return time.monotonic(), delay, time.process_time()

    async def watch() -> None:
        before = look()
        while True:
            await trio.sleep(EVERY)  # two milliseconds
            now = look()
            elapsed, delayed, computed = (new - old for new, old in zip(now, before, strict=True))
            holds.longest = max(holds.longest, min(elapsed - EVERY - delayed, computed))
            before = now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield holds
        nursery.cancel_scope.cancel()


EVERY = 0.002
