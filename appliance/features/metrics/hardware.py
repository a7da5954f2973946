"""The machine's hardware, examined on demand."""

from __future__ import annotations

import logging
import platform
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import psutil
import trio

from appliance import __version__
from appliance.core.machine import (
    Accelerator,
    AcceleratorMemory,
    Detector,
    Driver,
    Hardware,
    MainMemory,
    Method,
    Processor,
    architecture_of,
)
from appliance.core.machine_look import Gpu, MachineLook
from appliance.platform.machine import here

BUDGET = 10.0
"""Seconds; a driver that is installed but faulty may never answer."""

log = logging.getLogger(__name__)


async def detect(look: Callable[[], Awaitable[MachineLook]], budget: float = BUDGET) -> Hardware | None:
    """Describe the machine after a ``look``; None when the system does not tell, or not within ``budget`` seconds."""
    with trio.move_on_after(budget):
        try:
            seen = await look()
            return await trio.to_thread.run_sync(_described, seen, abandon_on_cancel=True)
        except (OSError, psutil.Error) as error:
            log.warning("the hardware cannot be described: %s", error)
            return None
    log.warning("the hardware could not be described within %g s: a driver does not answer", budget)
    return None


def _described(seen: MachineLook) -> Hardware:
    """Return the result of `detect`; blocks. Raises OSError or psutil.Error."""
    cpu = here.cpu_names()
    # The indices are those of samples. A card that is known from files alone, as its library does not answer, has none.
    cards = sorted(seen.gpus, key=lambda gpu: gpu.vendor == "NVIDIA" and gpu.total is None)
    return Hardware(
        captured_at=datetime.now(UTC),
        capture=Method(detector=Detector(name="llama-appliance", version=__version__)),
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
        memory=MainMemory(capacity_bytes=seen.memory_total),
        accelerators=tuple(_accelerator(index, gpu) for index, gpu in enumerate(gpu for gpu in cards if gpu.driver)),
    )


def _accelerator(index: int, gpu: Gpu) -> Accelerator:
    kind = "unified" if gpu.vendor == "Apple" else "dedicated" if gpu.total else "unknown"
    return Accelerator(
        index=index,
        vendor=gpu.vendor,
        model=gpu.name,
        architecture=gpu.architecture,
        memory=AcceleratorMemory(kind=kind, capacity_bytes=gpu.total),
        driver=Driver(name=gpu.driver, version=gpu.driver_version or None),
        power_limit_watts=gpu.power_limit,
    )
