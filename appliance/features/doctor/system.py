"""The doctor's look at the system: disks, swap, limits, cards, and the process behind a port.

``root`` is where to look for the system's files. Unknown facts are left out, and nothing raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from appliance.core.examination import BusCard, Checkup, DeviceFile, Disk, PortOwner
from appliance.platform.cards_linux import VENDORS, slots
from appliance.platform.groups_linux import ends_together
from appliance.platform.sampler import swap_bytes

DEVICE_FILES = ("dev/kfd", "dev/dri/renderD*", "dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm", "dev/dxg")


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
