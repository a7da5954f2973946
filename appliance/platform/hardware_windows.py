"""Windows' description of the machine, in its registry. Not exercised on a Windows machine yet."""

from __future__ import annotations

import platform
import sys

from appliance.core.engines.machine import Gpu
from appliance.core.machine import Accelerator, CpuNames, Environment, OperatingSystem

assert sys.platform == "win32"

import winreg  # noqa: E402

PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
SYSTEM = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion"
DISPLAYS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
"""The setup class of display adapters: a numbered key for each one that was ever installed."""
MAX_DISPLAYS = 32
GPU_VENDORS = {"ven_10de": ("NVIDIA", "nvidia"), "ven_1002": ("AMD", "amdgpu"), "ven_8086": ("Intel", "intel")}
VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


def cpu_names() -> CpuNames:
    """Return the first processor under its firmware name. The registry does not have the number of sockets."""
    vendor = _value(PROCESSOR, "VendorIdentifier")
    return CpuNames(VENDORS.get(vendor or "", vendor), _value(PROCESSOR, "ProcessorNameString"), None)


def operating_system() -> OperatingSystem:
    """``version`` is the marketing one (11), ``kernel`` the build (10.0.26100)."""
    return OperatingSystem(
        family="windows", name="Windows", version=platform.release() or None, kernel=platform.version() or None
    )


def environment() -> Environment:
    """A virtual Windows cannot be recognised from here with certainty."""
    return Environment(kind="unknown", name=None, version=None)


def memory_limit() -> int:
    """No limit below the machine's memory."""
    return sys.maxsize


def accelerators(first: int) -> list[Accelerator]:
    """Return none except NVIDIA's, which NVML reports."""
    return []


def revision() -> int:
    """Return the number that every monthly update raises."""
    value = _raw(SYSTEM, "UBR")
    return value if isinstance(value, int) else 0


def gpus() -> list[Gpu]:
    """Return the display adapters of the three vendors. An adapter that was taken out may still be listed."""
    found: list[Gpu] = []
    for number in range(MAX_DISPLAYS):
        key = rf"{DISPLAYS}\{number:04}"
        place = (_value(key, "MatchingDeviceId") or "").lower()
        names = next((names for word, names in GPU_VENDORS.items() if word in place), None)
        if names is None:
            continue
        size = _raw(key, "HardwareInformation.qwMemorySize")
        found.append(
            Gpu(
                vendor=names[0],
                name=_value(key, "DriverDesc") or f"{names[0]} GPU",
                driver=names[1],
                driver_version=_value(key, "DriverVersion") or "",
                total=size if isinstance(size, int) and size > 0 else None,
            )
        )
    return found


def _value(key: str, name: str) -> str | None:
    value = _raw(key, name)
    return value.strip() or None if isinstance(value, str) else None


def _raw(key: str, name: str) -> str | int | None:
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            value, kind = winreg.QueryValueEx(opened, name)
    except OSError:
        return None
    return value if kind in (winreg.REG_SZ, winreg.REG_DWORD, winreg.REG_QWORD) else None
