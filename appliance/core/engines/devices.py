"""The devices that an engine build says it can use."""

from __future__ import annotations

import re

from msgspec import Struct

CPU = "CPU"
"""The name of the device that every build has: the machine's processors and main memory."""

SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|basic render|\bwarp\b", re.IGNORECASE)
"""Names of graphics drivers that compute on the processor."""


class Device(Struct, frozen=True, kw_only=True):
    """One device, under one build's name. Sizes in bytes."""

    name: str
    """``CUDA0``, ``Vulkan1``, ``ROCm0``, ``Metal``, ``RPC0``: a value of ``--device``; or `CPU`."""
    description: str
    total: int
    free: int
    pci: str | None = None
    """``0000:01:00.0``, lower case: the same for one card in all backends."""
    uuid: str | None = None
    software: bool = False
    """True for a renderer that computes on the processor: always slower than the processor itself."""
    integrated: bool | None = None
    """True without memory of its own. None: unknown."""
    driver: str = ""
    """The version of its driver; empty if unknown."""

    @property
    def id(self) -> str:
        """The part that survives renaming: the card's place or number, else its name."""
        return self.pci or self.uuid or self.description or self.name


def cpu_device(model: str, memory: int) -> Device:
    """Return the processors as a device; ``model`` is their name."""
    return Device(name=CPU, description=model or CPU, total=memory, free=memory)
