"""What the machine is: processors, memory, accelerators, and what it runs in. Looked at when asked, once is enough."""

from __future__ import annotations

import logging
import platform
import sys
from datetime import UTC, datetime

import psutil
import trio

from appliance import __version__
from appliance.core.machine import (
    Accelerator,
    Capture,
    Detector,
    Hardware,
    MainMemory,
    Processor,
    architecture_of,
)
from appliance.platform.nvml import find_library, open_nvml

if sys.platform == "darwin":
    from appliance.platform import hardware_macos as here
elif sys.platform == "win32":
    from appliance.platform import hardware_windows as here
else:
    from appliance.platform import hardware_linux as here

BUDGET = 10.0
"""Seconds; a driver that is installed but ill may answer never."""

log = logging.getLogger(__name__)


async def detect(budget: float = BUDGET) -> Hardware | None:
    """Look, in a thread. None when the system does not tell, or not within ``budget`` seconds."""
    with trio.move_on_after(budget):
        try:
            return await trio.to_thread.run_sync(look, abandon_on_cancel=True)
        except (OSError, psutil.Error) as error:
            log.warning("the hardware cannot be described: %s", error)
            return None
    log.warning("the hardware could not be described within %g s: a driver does not answer", budget)
    return None


def look() -> Hardware:
    """What `detect` tells; blocks. Raises OSError or psutil.Error when not even the memory's size is known."""
    cpu = here.cpu_names()
    return Hardware(
        captured_at=datetime.now(UTC),
        capture=Capture(detector=Detector(name="llama-appliance", version=__version__)),
        architecture=architecture_of(platform.machine()),
        operating_system=here.operating_system(),
        environment=here.environment(),
        cpu=Processor(
            vendor=cpu.vendor,
            model=cpu.model,
            socket_count=cpu.sockets,
            physical_core_count=psutil.cpu_count(logical=False),
            logical_thread_count=psutil.cpu_count(logical=True),
        ),
        memory=MainMemory(capacity_bytes=min(psutil.virtual_memory().total, here.memory_limit())),
        accelerators=tuple(_accelerators()),
    )


def _accelerators() -> list[Accelerator]:
    """NVIDIA's first: that is the order of the GPU samples."""
    with open_nvml(find_library()) as nvml:
        found = [] if nvml is None else nvml.accelerators()
    return found + here.accelerators(first=len(found))
