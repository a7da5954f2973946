"""The memory of a process and of all that it has started: main memory, and memory of NVIDIA devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import trio

from appliance.platform.drivers import Gpus
from appliance.platform.machine import here


def free_memory() -> int:
    """Bytes that a new program could have: what the system has left, or the container."""
    import psutil  # seven milliseconds, which a server that has started no model saves

    return min(psutil.virtual_memory().available, here.memory_left())


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in RAM, pages shared with others included. None when it is gone or not ours to see."""
    import psutil  # as above

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


async def process_memory(pid: int, devices: Collection[str], gpus: Gpus) -> Mapping[str, int]:
    """Bytes by device, for those of ``devices`` (``ram``, ``gpu0`` ...) that can be told. It takes milliseconds."""
    family = await trio.to_thread.run_sync(_family, pid)
    taken: dict[str, int] = {}
    if "ram" in devices and (resident := sum(family.values())):
        taken["ram"] = resident  # nothing at all is what a process has that has just ended
    for device in devices:
        if device.startswith("gpu") and device[3:].isdigit():
            found = _of(family, await gpus.processes(int(device[3:])) or ())
            if found is not None:
                taken[device] = found
    return taken


def _family(pid: int) -> dict[int, int]:
    """The process and those that it has started, with the bytes that each has in RAM."""
    import psutil  # as above

    try:
        members = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return {}
    return {member: resident_bytes(member) or 0 for member in members}


def _of(family: Collection[int], running: Iterable[tuple[int, int | None]]) -> int | None:
    """None without a driver, or where it does not tell who takes what (containers, Windows in WDDM mode)."""
    taken = [size for pid, size in running if pid in family]
    known = [size for size in taken if size is not None]
    return sum(known) if known and len(known) == len(taken) else None
