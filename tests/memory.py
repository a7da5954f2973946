"""What the program takes: the most memory of this process, of a process that reads a file, and the longest hold of
the event loop.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from appliance.tools.file_process import HEAD, Task, Verdict, command

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(*, anew: bool = False) -> int:
    """The most bytes that this process has had since the last time with ``anew``; 0 where no system tells."""
    if anew and CLEAR.exists():
        CLEAR.write_text("5", "utf-8")
    found = re.search(r"VmHWM:\s+(\d+)", STATUS.read_text("utf-8")) if STATUS.exists() else None
    return int(found[1]) << 10 if found else 0


def read_file_apart(task: Task, data: bytes) -> tuple[Verdict, bytes, int]:
    """Run the process that reads files of strangers: its verdict, its result, and the most bytes that it had."""
    with subprocess.Popen(command(task), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=_send, args=(process.stdin, data), daemon=True).start()
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    size = int.from_bytes(output[:HEAD])
    return msgspec.json.decode(output[HEAD : HEAD + size], type=Verdict), output[HEAD + size :], usage.ru_maxrss << 10


def _send(stream, data: bytes) -> None:
    with stream:
        stream.write(data)


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
            await trio.sleep(EVERY)
            now = look()
            elapsed, delayed, computed = (new - old for new, old in zip(now, before, strict=True))
            holds.longest = max(holds.longest, min(elapsed - EVERY - delayed, computed))
            before = now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield holds
        nursery.cancel_scope.cancel()


EVERY = 0.002
