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

from appliance.core.engines.machine import Gpu, normal_pci
from appliance.core.machine import Accelerator, AcceleratorMemory, Driver, GpuSample
from appliance.core.sizes import MIB

ROOT = Path("/")
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}
DISPLAYED = (AMD, INTEL)
"""Vendors whose cards are sampled through their display driver; NVIDIA's are sampled by their library."""
CARD = re.compile(r"card(\d+)")
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


class DriverCard(Struct, frozen=True, kw_only=True):
    """One GPU of a driver; ``hwmon`` is its folder of sensors, if it has one."""

    device: Path
    vendor: str
    name: str
    uuid: str | None
    hwmon: Path | None
    sensors: dict[str, Path]
    """Temperatures by label: edge, junction, mem (amdgpu); pkg, vram (xe)."""


def find_cards(root: Path = ROOT) -> list[DriverCard]:
    """Return AMD and Intel GPUs in the kernel's order. NVIDIA's are left to NVML; virtual displays are not GPUs."""
    folder = root / "sys/class/drm"
    numbered = sorted(
        (int(match[1]), path) for path in entries(folder) if (match := CARD.fullmatch(path.name)) is not None
    )
    return [card for _, path in numbered if (card := _card(path / "device")) is not None]


def sample(card: DriverCard, index: int, now: datetime) -> GpuSample:
    """Take one sample. A question would wake a GPU that is powered down, so only its name is reported."""
    # Reading a sensor wakes the card, and a sample every few seconds would keep a laptop's GPU awake for ever.
    if read_text(card.device / "power" / "runtime_status") == "suspended":
        return GpuSample(timestamp=now, id=index, name=card.name, uuid=card.uuid)
    used, total = (read_number(card.device / f"mem_info_vram_{which}") for which in ("used", "total"))
    return GpuSample(
        timestamp=now,
        id=index,
        name=card.name,
        uuid=card.uuid,
        temp_c=_degrees(card, "edge", "pkg"),
        vram_temp_c=_degrees(card, "mem", "vram"),
        gpu_util_pct=read_number(card.device / "gpu_busy_percent"),
        mem_util_pct=read_number(card.device / "mem_busy_percent"),
        mem_used_mb=None if used is None else used // MIB,
        mem_total_mb=None if total is None else total // MIB,
        fan_speed_pct=_fan_percent(card.hwmon),
        power_draw_w=_watts(card.hwmon, "power1_average", "power1_input"),
    )


def accelerator(card: DriverCard, index: int, root: Path = ROOT) -> Accelerator:
    """Return the GPU's hardware. Only amdgpu reports the size of its own memory; Intel's drivers do not."""
    capacity = read_number(card.device / "mem_info_vram_total")
    driver = _driver(card.device)
    return Accelerator(
        index=index,
        vendor=card.vendor,
        model=read_text(card.device / "product_name"),
        architecture=None,
        memory=AcceleratorMemory(kind="dedicated" if capacity else "unknown", capacity_bytes=capacity or None),
        driver=Driver(name=driver, version=_module_version(driver, root) or None) if driver else None,
        power_limit_watts=_watts(card.hwmon, "power1_cap") or None,
    )


def _card(device: Path) -> DriverCard | None:
    number = read_text(device / "vendor")
    if number not in DISPLAYED:
        return None
    vendor = VENDORS[number]
    hwmon = next(iter(entries(device / "hwmon")), None)
    model = (read_text(device / "device") or "").removeprefix("0x")
    named = [path for path in entries(hwmon) if path.match("temp*_label")] if hwmon is not None else []
    labels = [(path, read_text(path)) for path in named]
    return DriverCard(
        device=device,
        vendor=vendor,
        name=read_text(device / "product_name") or f"{vendor} GPU {model}".strip(),
        uuid=read_text(device / "unique_id"),
        hwmon=hwmon,
        sensors={label: path.with_name(path.name.replace("_label", "_input")) for path, label in labels if label},
    )


def _degrees(card: DriverCard, *labels: str) -> int | None:
    for label in labels:
        sensor = card.sensors.get(label)
        if sensor is not None and (value := read_number(sensor)) is not None:
            return round(value * MILLI)
    return None


def _fan_percent(hwmon: Path | None) -> float | None:
    if hwmon is None:
        return None
    value, full = read_number(hwmon / "pwm1"), read_number(hwmon / "pwm1_max")
    return None if value is None or not full else round(100 * value / full, 1)


def _watts(hwmon: Path | None, *names: str) -> float | None:
    """Read the first of these hwmon files that is readable; they are in microwatts."""
    for path in [hwmon / name for name in names] if hwmon is not None else []:
        if (value := read_number(path)) is not None:
            return round(value * MICRO, 1)
    return None


# ---- on the bus ------------------------------------------------------------------------------------------------------


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
            name=f"Intel GPU {slot.device}".strip(),
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
    asleep = read_text(slot.folder / "power/runtime_status") == "suspended"
    total = None if asleep else read_number(slot.folder / "mem_info_vram_total")
    used = None if asleep else read_number(slot.folder / "mem_info_vram_used")
    gpu = Gpu(
        vendor="AMD",
        name=read_text(slot.folder / "product_name") or f"AMD GPU {slot.device}".strip(),
        driver=slot.driver,
        driver_version=_module_version(slot.driver, root),
        pci=slot.pci,
        uuid=read_text(slot.folder / "unique_id"),
        total=total or None,
        gfx=node.gfx,
        integrated=True if node.is_apu else None,
    )
    return structs.replace(gpu, free=max(0, total - used)) if total and used is not None else gpu


def _module_version(driver: str, root: Path) -> str:
    """Return the version of a driver outside the kernel's tree; those inside are as old as the kernel."""
    return (read_text(root / "sys/module" / driver / "version") or "") if driver else ""


# ---- files -----------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str | None:
    """Return the text of one small file; None if it is empty, absent, or cannot be read now (EBUSY, EPERM)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the decimal number in one small file."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, in the order of names; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _driver(folder: Path) -> str:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return ""
