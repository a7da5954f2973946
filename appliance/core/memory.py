"""Memory as the fleet keeps it: what a device has, what a model takes there, and the plan of a model's start.

Refuses to estimate: a feature may do that, and fills these shapes in (`fleet.estimate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from appliance.core.machine import GpuSample
from appliance.core.machine_look import MachineLook
from appliance.core.sizes import MIB

RAM = "ram"  # main memory, as budgets and plans call it; cards are gpu0, gpu1, in the order of a look at the machine

Sizes = Mapping[str, int]  # bytes by device
Verdict = Literal["fits", "partly", "no"]


class GpuMemory(Struct, frozen=True):
    """One device at one moment, in bytes."""

    used: int
    total: int


class DeviceUse(Struct, frozen=True, kw_only=True):
    """Bytes on one device, by kind; the kinds are those of the lines that llama-server prints."""

    model: int = 0
    cache: int = 0  # context and states
    compute: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.model + self.cache + self.compute + self.output

    def __add__(self, other: DeviceUse) -> DeviceUse:
        return DeviceUse(
            model=self.model + other.model,
            cache=self.cache + other.cache,
            compute=self.compute + other.compute,
            output=self.output + other.output,
        )


class FitPlan(Struct, frozen=True, kw_only=True):
    """The plan, for people and programs. ``flags`` are added to the user's own; sizes in bytes.

    With the verdict "no" it is the plan of the smallest start.
    """

    verdict: Verdict
    why: str
    flags: tuple[str, ...]
    context: int  # tokens of all slots together
    parallel: int
    gpu_layers: int
    layers: int
    memory: Mapping[str, DeviceUse]  # of each device that has a part of it
    room: Sizes  # the free memory of each device; ``reserve`` of it stays free
    reserve: int
    prompt_cache: int = 0  # what the process may keep of earlier prompts, in main memory and beyond ``memory``
    slot_context: int  # tokens that one slot can have

    @property
    def token_bytes(self) -> int:
        """Bytes that a token of context takes, with its share of states."""
        return sum(use.cache for use in self.memory.values()) // max(self.context, 1)

    @property
    def word(self) -> str:
        """A word for a column of a table."""
        if self.verdict == "partly":
            return f"partly: {self.gpu_layers} of {self.layers} layers"
        return "fits" if self.verdict == "fits" else "will not fit"

    def by_device(self) -> Sizes:
        return {device: use.total for device, use in self.memory.items()}


def gpu_memory(samples: Iterable[GpuSample]) -> Mapping[str, GpuMemory]:
    """Return the GPUs' memory by the names that budgets use."""
    return {
        f"gpu{gpu.id}": GpuMemory(gpu.mem_used_mb * MIB, gpu.mem_total_mb * MIB)
        for gpu in samples
        if gpu.mem_used_mb is not None and gpu.mem_total_mb
    }


def room_of(look: MachineLook) -> Sizes:
    """Return the bytes that are free now, by device."""
    gpus = enumerate(look.gpus)
    free = {f"gpu{n}": max(0, gpu.free) for n, gpu in gpus if gpu.free is not None and not gpu.integrated}
    return {RAM: look.memory_available, **free}
