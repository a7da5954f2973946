"""The machine's hardware, examined on demand, and the doctor's further look: disks, swap, limits, cards.

``root`` is where to look for the system's files. In the doctor's look unknown facts are left out, and nothing raises.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil
import trio

from appliance import __version__
from appliance.features.doctor.core.facts import BusCard, Checkup, DeviceFile, Disk, PortOwner
from appliance.core.engines.machine import Gpu, MachineLook
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
from appliance.platform.cards_linux import VENDORS, slots
from appliance.platform.children import open_children
from appliance.platform.drivers import look
from appliance.platform.groups_linux import ends_together
from appliance.platform.machine import here
from appliance.platform.sampler import swap_bytes

BUDGET = 10.0
"""Seconds; a driver that is installed but faulty may never answer."""
DEVICE_FILES = ("dev/kfd", "dev/dri/renderD*", "dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm", "dev/dxg")

log = logging.getLogger(__name__)


async def detect(budget: float = BUDGET) -> Hardware | None:
    """Look at the machine; None when the system does not tell, or not within ``budget`` seconds."""
    with trio.move_on_after(budget):
        try:
            async with open_children() as children:
                seen = await look(children)
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


# ---- for the doctor --------------------------------------------------------------------------------------------------


def checkup(folders: Mapping[str, Path], root: Path = Path("/")) -> Checkup:
    """Look around. ``folders`` are those that the program writes to, by their content. Blocks for milliseconds."""
    swap = swap_bytes()
    return Checkup(
        disks=tuple(_disks(folders)),
        swap_used=swap[1],
        swap_total=swap[0],
        open_files=_open_files(),
        cores=psutil.cpu_count(logical=True) or 0,
        memory=psutil.virtual_memory().total,
        ends_together=ends_together(root),
        cards=tuple(BusCard(pci=slot.pci, vendor=VENDORS[slot.vendor], driver=slot.driver) for slot in slots(root)),
        device_files=tuple(
            DeviceFile(path=str(path), usable=os.access(path, os.R_OK | os.W_OK), group=_group(path))
            for pattern in DEVICE_FILES
            for path in sorted(root.glob(pattern))
        ),
    )


def port_owner(port: int) -> PortOwner | None:
    """Return the process that listens on a TCP port here, without a name if the system hides it. None: none does."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for one in connections:
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
            return PortOwner(port=port, pid=one.pid, name=_name(one.pid))
    return None


def _name(pid: int | None) -> str:
    try:
        return psutil.Process(pid).name() if pid else ""
    except psutil.Error:
        return ""


def _disks(folders: Mapping[str, Path]) -> Iterator[Disk]:
    """Report folders on the same disk only once."""
    seen: set[int] = set()
    for what, folder in folders.items():
        there = next((path for path in (folder, *folder.parents) if path.exists()), None)
        if there is None:
            continue
        try:
            device, usage = there.stat().st_dev, psutil.disk_usage(str(there))
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            yield Disk(what=what, path=str(folder), free=usage.free, total=usage.total)


def _open_files() -> int | None:
    """Return the hard limit: the program raises its soft one by itself."""
    if sys.platform == "win32":
        return None
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _group(path: Path) -> str:
    if sys.platform == "win32":
        return ""
    try:
        return path.group()
    except (OSError, KeyError):
        return ""
