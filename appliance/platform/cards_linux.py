"""GPUs as Linux' files show them, drivers or not. Files are only read, no library is called, no sleeping GPU is woken.

``root`` is where to look for the files. Sources: the kernel's documentation of ``amdgpu`` ("GPU Power/Thermal Controls
and Monitoring", "Memory info"), of hwmon's sysfs interface, sysfs-bus-pci and amdkfd; the README of NVIDIA's driver,
"The /proc interface".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct, structs

from appliance.core.machine import GpuSample
from appliance.core.machine_look import Gpu, normal_pci
from appliance.core.sizes import MIB
from appliance.platform.small_files_linux import entries, read_number, read_text

ROOT = Path("/")
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}
MICRO, MILLI = 1e-6, 1e-3
CLASSES = ("0x03", "0x12")
"""PCI classes: displays and 3D controllers; processing accelerators."""
MAX_CARDS = 64
INTEGRATED_INTEL = "0000:00:02.0"
"""The place of the processor's own GPU on every Intel platform."""
OPEN_DRIVERS = ("nouveau", "nova")
"""Drivers of NVIDIA's cards on which CUDA does not run."""
SET_ASIDE = ("vfio-pci", "pci-stub", "pciback", "xen-pciback")
"""Drivers that keep a card for a virtual machine."""
NODES = "sys/class/kfd/kfd/topology/nodes"
KFD = "dev/kfd"


class Slot(Struct, frozen=True, kw_only=True):
    """One card on the bus. ``driver`` is empty without one."""

    pci: str
    vendor: str
    device: str
    driver: str
    folder: Path


def slots(root: Path = ROOT) -> list[Slot]:
    """Return every card of the three vendors, in the order of the bus."""
    found: list[Slot] = []
    for folder in entries(root / "sys/bus/pci/devices"):
        kind, vendor = read_text(folder / "class") or "", read_text(folder / "vendor") or ""
        pci = normal_pci(folder.name)
        if pci is not None and vendor in VENDORS and kind.startswith(CLASSES):
            device = (read_text(folder / "device") or "").removeprefix("0x")
            found.append(Slot(pci=pci, vendor=vendor, device=device, driver=_driver(folder), folder=folder))
    return found[:MAX_CARDS]


def sampled(root: Path = ROOT) -> list[Slot]:
    """Return AMD's and Intel's cards that have a driver, in the order of a look. NVIDIA's are left to their library."""
    found = [slot for slot in slots(root) if slot.vendor != NVIDIA and slot.driver]
    return sorted(found, key=lambda slot: slot.vendor != AMD)


def sample(card: Slot, index: int, now: datetime) -> GpuSample:
    """Take one sample. A question would wake a GPU that is powered down, so only its name is reported."""
    named = GpuSample(timestamp=now, id=index, name=_name(card), uuid=read_text(card.folder / "unique_id"))
    # Reading a sensor wakes the card, and a sample every few seconds would keep a laptop's GPU awake for ever.
    if _is_asleep(card):
        return named
    used, total = (read_number(card.folder / f"mem_info_vram_{which}") for which in ("used", "total"))
    hwmon = _hwmon(card)
    return structs.replace(
        named,
        temp_c=_degrees(hwmon, "edge", "pkg"),
        vram_temp_c=_degrees(hwmon, "mem", "vram"),
        gpu_util_pct=read_number(card.folder / "gpu_busy_percent"),
        mem_util_pct=read_number(card.folder / "mem_busy_percent"),
        mem_used_mb=None if used is None else used // MIB,
        mem_total_mb=None if total is None else total // MIB,
        fan_speed_pct=_fan_percent(hwmon),
        power_draw_w=_watts(hwmon, "power1_average", "power1_input"),
    )


def nvidia_from_files(root: Path = ROOT) -> list[Gpu]:
    """Return the cards that the kernel's module reports: for when NVML does not."""
    version = nvidia_version(root)
    found: list[Gpu] = []
    for folder in entries(root / "proc/driver/nvidia/gpus")[:MAX_CARDS]:
        text = read_text(folder / "information") or ""
        facts = dict(re.findall(r"^([^:\n]+):[ \t]*(.*)$", text, re.MULTILINE))
        uuid = facts.get("GPU UUID", "").strip()
        found.append(
            Gpu(
                vendor="NVIDIA",
                name=facts.get("Model", "").strip() or "NVIDIA GPU",
                driver="nvidia",
                driver_version=version,
                pci=normal_pci(folder.name),
                uuid=uuid if uuid and "?" not in uuid else None,
            )
        )
    return found


def nvidia_version(root: Path = ROOT) -> str:
    """Return the version of the kernel's module; empty when it is not loaded."""
    text = read_text(root / "proc/driver/nvidia/version") or read_text(root / "sys/module/nvidia/version") or ""
    found = re.search(r"\b([0-9]{3,4}\.[0-9]+(?:\.[0-9]+)*)\b", text)
    return found[1] if found else ""


def amd(root: Path = ROOT) -> list[Gpu]:
    """Return AMD's cards, with KFD's capabilities. A sleeping card is not woken: its memory stays unknown."""
    targets = _kfd(root)
    return [_amd(slot, targets.get(slot.pci, _NO_NODE), root) for slot in slots(root) if slot.vendor == AMD]


def intel(root: Path = ROOT) -> list[Gpu]:
    """Return Intel's cards; their drivers report no memory in files."""
    return [
        Gpu(
            vendor="Intel",
            name=_name(slot),
            driver=slot.driver,
            driver_version=_module_version(slot.driver, root),
            pci=slot.pci,
            integrated=slot.pci == INTEGRATED_INTEL,
        )
        for slot in slots(root)
        if slot.vendor == INTEL
    ]


def problems(root: Path = ROOT) -> list[str]:
    """Return cards whose driver is missing or another than engines need, one line each, with the remedy."""
    found = slots(root)
    needs_render = any(slot.vendor != NVIDIA for slot in found)
    return [line for slot in found for line in _slot_problems(slot)] + _permissions(root, render=needs_render)


def _slot_problems(slot: Slot) -> Iterator[str]:
    card = f"{VENDORS[slot.vendor]} card {slot.pci}"
    if not slot.driver:
        yield f"{card} has no driver: install the driver of its vendor, and restart the machine"
    elif slot.driver in SET_ASIDE:
        yield f"{card} is set aside for virtual machines (driver {slot.driver}): nothing here can use it"
    elif slot.vendor == NVIDIA and slot.driver in OPEN_DRIVERS:
        yield f"{card} runs with the driver {slot.driver}, which has no CUDA: install NVIDIA's driver"


def _permissions(root: Path, *, render: bool) -> list[str]:
    """``render``: there is a card that programs reach through the files of displays, as all except NVIDIA's are."""
    needed = [root / KFD, *(sorted(root.glob("dev/dri/renderD*")) if render else ())]
    closed = [path for path in needed if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    return [
        f"no permission on /{path.relative_to(root)}: add this user to the groups render and video, and log in again"
        for path in closed
    ]


class _Node(Struct, frozen=True):
    """One of KFD's nodes that can compute."""

    gfx: str | None = None
    is_apu: bool = False


_NO_NODE = _Node()


def _kfd(root: Path) -> Mapping[str, _Node]:
    """Return the nodes by place on the bus."""
    found: dict[str, _Node] = {}
    for folder in entries(root / NODES)[: 2 * MAX_CARDS]:
        facts = dict(re.findall(r"^(\w+) ([0-9]{1,20})$", read_text(folder / "properties") or "", re.MULTILINE))
        number = {name: int(value) for name, value in facts.items()}
        if not number.get("simd_count"):
            continue
        # KFD numbers its nodes on its own. The place on the bus is the only name that it shares with the rest of the
        # system.
        place = number.get("location_id", 0)  # bus and function as in PCI_DEVID, domain apart
        pci = f"{number.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        found[pci] = _Node(_gfx(number.get("gfx_target_version", 0)), bool(number.get("cpu_cores_count")))
    return found


def _gfx(version: int) -> str | None:
    """Convert ``110000`` to ``gfx1100``, ``90010`` to ``gfx90a``: two digits each, the last two parts hexadecimal."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if version else None


def _amd(slot: Slot, node: _Node, root: Path) -> Gpu:
    asleep = _is_asleep(slot)
    total = None if asleep else read_number(slot.folder / "mem_info_vram_total")
    used = None if asleep else read_number(slot.folder / "mem_info_vram_used")
    gpu = Gpu(
        vendor="AMD",
        name=_name(slot),
        driver=slot.driver,
        driver_version=_module_version(slot.driver, root),
        pci=slot.pci,
        uuid=read_text(slot.folder / "unique_id"),
        total=total or None,
        gfx=node.gfx,
        integrated=True if node.is_apu else None,
        power_limit=None if asleep else _watts(_hwmon(slot), "power1_cap") or None,
    )
    return structs.replace(gpu, free=max(0, total - used)) if total and used is not None else gpu


def _module_version(driver: str, root: Path) -> str:
    """Return the version of a driver outside the kernel's tree; those inside are as old as the kernel."""
    return (read_text(root / "sys/module" / driver / "version") or "") if driver else ""


# ---- one card's files ------------------------------------------------------------------------------------------------


def _name(card: Slot) -> str:
    return read_text(card.folder / "product_name") or f"{VENDORS[card.vendor]} GPU {card.device}".strip()


def _is_asleep(card: Slot) -> bool:
    return read_text(card.folder / "power/runtime_status") == "suspended"


def _hwmon(card: Slot) -> Path:
    """The folder of the card's sensors, which need not be there."""
    return next(iter(entries(card.folder / "hwmon")), card.folder / "hwmon")


def _degrees(hwmon: Path, *labels: str) -> int | None:
    """Read the first temperature with one of these labels: edge, junction, mem (amdgpu); pkg, vram (xe)."""
    sensors = {read_text(path): path for path in entries(hwmon) if path.match("temp*_label")}
    for label in labels:
        if (path := sensors.get(label)) is not None:
            value = read_number(path.with_name(path.name.replace("_label", "_input")))
            return None if value is None else round(value * MILLI)
    return None


def _fan_percent(hwmon: Path) -> float | None:
    value, full = read_number(hwmon / "pwm1"), read_number(hwmon / "pwm1_max")
    return None if value is None or not full else round(100 * value / full, 1)


def _watts(hwmon: Path, *names: str) -> float | None:
    """Read the first of these hwmon files that is readable; they are in microwatts."""
    values = (read_number(hwmon / name) for name in names)
    return next((round(value * MICRO, 1) for value in values if value is not None), None)


# ---- files -----------------------------------------------------------------------------------------------------------


def _driver(folder: Path) -> str:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return ""
