"""Graphics cards as the kernel asks for them. Without a feature that asks their drivers there are none.

The memory of processes is measured here, on cards and in RAM.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import trio

from appliance.core.machine import GpuSample
from appliance.core.machine_look import MachineLook
from appliance.platform.machine import resident_bytes, this_platform


class Gpus(Protocol):
    """The drivers, asked again and again."""

    async def samples(self) -> list[GpuSample]:
        """Return how busy they are."""
        ...

    async def processes(self, index: int, /) -> list[tuple[int, int | None]] | None:
        """Return the processes on one GPU with their bytes there, None for unknown bytes; None: unknown."""
        ...


class NoGpus:
    """There are no GPUs, or nothing here asks them."""

    async def samples(self) -> list[GpuSample]:
        return []

    async def processes(self, index: int, /) -> list[tuple[int, int | None]] | None:
        return None


def plain_look(*problems: str) -> MachineLook:
    """Return the facts that need no look."""
    return MachineLook(
        platform=this_platform(),
        system=f"{platform.system()} {platform.release()}",
        environment="unknown",
        cpu=platform.machine(),
        cores=os.cpu_count() or 1,
        problems=problems,
    )


async def process_memory(pid: int, devices: Collection[str], gpus: Gpus) -> Mapping[str, int]:
    """Bytes by device, for those of ``devices`` (``ram``, ``gpu0`` ...) that can be measured. It takes milliseconds."""
    # A configured command is often a wrapper: the memory belongs to its descendants.
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
    import psutil  # seven milliseconds, which a server that has started no model saves

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
