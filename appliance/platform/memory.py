"""What a running process takes, with all that it has started: main memory, and memory of NVIDIA devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import psutil
import trio

from appliance.platform import cgroups
from appliance.platform.gpus import processes_on


def free_memory() -> int:
    """Bytes that a new program could have: what the system has left, or the container."""
    return min(psutil.virtual_memory().available, cgroups.memory_left())


def process_memory(pid: int, devices: Collection[str]) -> Mapping[str, int]:
    """Bytes by device, for those of ``devices`` (``ram``, ``gpu0`` ...) that can be told.

    Blocks for milliseconds: called in a thread of Trio's, which GPUs are asked from (`platform.gpus`).
    """
    family = _family(pid)
    taken: dict[str, int] = {}
    if "ram" in devices and (resident := sum(_resident(process) for process in family)):
        taken["ram"] = resident  # nothing at all is what a process has that has just ended
    pids = {process.pid for process in family}
    for device in devices:
        if device.startswith("gpu") and device[3:].isdigit():
            found = _on_gpu(int(device[3:]), pids)
            if found is not None:
                taken[device] = found
    return taken


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _on_gpu(index: int, pids: Collection[int]) -> int | None:
    """None without a driver, or where it does not tell who takes what (containers, Windows in WDDM mode)."""
    running = trio.from_thread.run(processes_on, index)
    taken = [size for pid, size in running or () if pid in pids]
    known = [size for size in taken if size is not None]
    return sum(known) if known and len(known) == len(taken) else None
