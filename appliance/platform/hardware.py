"""The machine's hardware: processors, memory, accelerators, and the kind of system around it. Examined on demand,
once.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
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
from appliance.platform.drivers import open_gpus
from appliance.platform.machine import here

BUDGET = 10.0
"""Seconds; a driver that is installed but faulty may never answer."""

log = logging.getLogger(__name__)


async def detect(budget: float = BUDGET) -> Hardware | None:
    """Look, in a thread, and at NVIDIA's cards in a separate process, which ends with the look.

    None when the system does not tell, or not within ``budget`` seconds.
    """
    with trio.move_on_after(budget):
        try:
            async with open_gpus() as gpus:
                nvidia = await gpus.accelerators()
            return await trio.to_thread.run_sync(look, nvidia, abandon_on_cancel=True)
        except (OSError, psutil.Error) as error:
            log.warning("the hardware cannot be described: %s", error)
            return None
    log.warning("the hardware could not be described within %g s: a driver does not answer", budget)
    return None


def look(nvidia: Sequence[Accelerator] = ()) -> Hardware:
    """Return the result of `detect`; blocks. NVIDIA's cards come first, in the order of the GPU samples.

    Raises OSError or psutil.Error when not even the memory's size is known.
    """
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
        accelerators=(*nvidia, *here.accelerators(first=len(nvidia))),
    )
