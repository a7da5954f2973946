"""The memory of a process and of all that it has started: main memory, and memory of NVIDIA devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from appliance.platform import cgroups
from appliance.platform.gpus import processes_on


def free_memory() -> int:
    """Bytes that a new program could have: what the system has left, or the container."""
    import psutil  # seven milliseconds, which a server that has started no model saves

    return min(psutil.virtual_memory().available, cgroups.memory_left())


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in RAM, pages shared with others included. None when it is gone or not ours to see."""
    import psutil  # as above

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


def process_memory(pid: int, devices: Collection[str]) -> Mapping[str, int]:
    """Bytes by device, for those of ``devices`` (``ram``, ``gpu0`` ...) that can be told.

    Blocks for milliseconds: called in a thread of Trio's, which GPUs are asked from (`platform.gpus`).
    """
    family = _family(pid)
    taken: dict[str, int] = {}
    if "ram" in devices and (resident := sum(resident_bytes(member) or 0 for member in family)):
        taken["ram"] = resident  # nothing at all is what a process has that has just ended
    for device in devices:
        if device.startswith("gpu") and device[3:].isdigit():
            found = _on_gpu(int(device[3:]), family)
            if found is not None:
                taken[device] = found
    return taken


def _family(pid: int) -> set[int]:
    import psutil  # as above

    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return set()


def _on_gpu(index: int, pids: Collection[int]) -> int | None:
    """None without a driver, or where it does not tell who takes what (containers, Windows in WDDM mode)."""
    running = trio.from_thread.run(processes_on, index)
    taken = [size for pid, size in running or () if pid in pids]
    known = [size for size in taken if size is not None]
    return sum(known) if known and len(known) == len(taken) else None
