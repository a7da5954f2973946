"""GPUs as Linux' display drivers show them under ``/sys/class/drm``. Files are only read, and sleeping GPUs not woken.

Sources: the kernel's documentation of ``amdgpu`` ("GPU Power/Thermal Controls and Monitoring", "Memory info") and of
hwmon's sysfs interface.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from appliance.core.machine import MIB, Accelerator, AcceleratorMemory, Driver, GpuSample

ROOT = Path("/sys")
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
VENDORS = {AMD: "AMD", INTEL: "Intel"}
CARD = re.compile(r"card(\d+)")
MICRO, MILLI = 1e-6, 1e-3


class Card(Struct, frozen=True, kw_only=True):
    """One GPU of a driver; ``hwmon`` is its folder of sensors, if it has one."""

    device: Path
    vendor: str
    name: str
    uuid: str | None
    hwmon: Path | None
    sensors: dict[str, Path]
    """Temperatures by label: edge, junction, mem (amdgpu); pkg, vram (xe)."""


def find_cards(root: Path = ROOT) -> list[Card]:
    """Return AMD and Intel GPUs in the kernel's order. NVIDIA's are left to NVML; virtual displays are not GPUs."""
    folder = root / "class" / "drm"
    numbered = sorted(
        (int(match[1]), path) for path in _entries(folder) if (match := CARD.fullmatch(path.name)) is not None
    )
    return [card for _, path in numbered if (card := _card(path / "device")) is not None]


def sample(card: Card, index: int, now: datetime) -> GpuSample:
    """Take one sample. A question would wake a GPU that is powered down, so for such a GPU only the name is
    reported.
    """
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


def accelerator(card: Card, index: int, root: Path = ROOT) -> Accelerator:
    """Return the GPU's hardware. Only amdgpu reports the size of its own memory; Intel's drivers do not."""
    capacity = read_number(card.device / "mem_info_vram_total")
    driver = _link_name(card.device / "driver")
    return Accelerator(
        index=index,
        vendor=card.vendor,
        model=read_text(card.device / "product_name"),
        architecture=None,
        memory=AcceleratorMemory(kind="dedicated" if capacity else "unknown", capacity_bytes=capacity or None),
        driver=None if driver is None else Driver(name=driver, version=read_text(root / "module" / driver / "version")),
        power_limit_watts=_watts(card.hwmon, "power1_cap") or None,
    )


def _card(device: Path) -> Card | None:
    vendor = VENDORS.get(read_text(device / "vendor") or "")
    if vendor is None:
        return None
    hwmon = next(iter(sorted(_entries(device / "hwmon"))), None)
    number = (read_text(device / "device") or "").removeprefix("0x")
    return Card(
        device=device,
        vendor=vendor,
        name=read_text(device / "product_name") or f"{vendor} GPU {number}".strip(),
        uuid=read_text(device / "unique_id"),
        hwmon=hwmon,
        sensors=_sensors(hwmon),
    )


def _sensors(hwmon: Path | None) -> dict[str, Path]:
    if hwmon is None:
        return {}
    labels = ((path, read_text(path)) for path in _entries(hwmon) if path.match("temp*_label"))
    return {label: path.with_name(path.name.replace("_label", "_input")) for path, label in labels if label is not None}


def _degrees(card: Card, *labels: str) -> int | None:
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


def read_text(path: Path) -> str | None:
    """Return the text of one small file; None if it is empty, absent, or cannot be read at the moment (EBUSY,
    EPERM).
    """
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


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link_name(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None
