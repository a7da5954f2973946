"""The devices that an engine build says it can use."""

from __future__ import annotations

import re

from msgspec import Struct

CPU = "CPU"
"""The name of the device that every build has: the machine's processors and main memory."""

SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|basic render|\bwarp\b", re.IGNORECASE)
"""Names of graphics drivers that compute on the processor."""


class Device(Struct, frozen=True, kw_only=True):
    """One device, as one build names it. Sizes in bytes."""

    name: str
    """``CUDA0``, ``Vulkan1``, ``ROCm0``, ``Metal``, ``RPC0``: what ``--device`` takes; or `CPU`."""
    description: str
    total: int
    free: int
    pci: str | None = None
    """``0000:01:00.0``, lower case: the same card seen through another backend has the same."""
    uuid: str | None = None
    software: bool = False
    """A renderer that computes on the processor: always slower than the processor itself."""
    integrated: bool | None = None
    """It has no memory of its own. None: not told."""
    driver: str = ""
    """The version of its driver; empty where it is not told."""

    @property
    def id(self) -> str:
        """What stays when names are given anew: the card's place or number, else what it is called."""
        return self.pci or self.uuid or self.description or self.name


def cpu_device(model: str, memory: int) -> Device:
    """The processors as a device; ``model`` is what they are called."""
    return Device(name=CPU, description=model or CPU, total=memory, free=memory)
