"""What Windows tells of the machine, in its registry. Not exercised on a Windows machine yet."""

from __future__ import annotations

import platform
import sys

from appliance.core.machine import Accelerator, CpuNames, Environment, OperatingSystem

assert sys.platform == "win32"

import winreg  # noqa: E402

PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


def cpu_names() -> CpuNames:
    """As the firmware named the first processor. How many sockets there are is not in the registry."""
    vendor = _value(PROCESSOR, "VendorIdentifier")
    return CpuNames(VENDORS.get(vendor or "", vendor), _value(PROCESSOR, "ProcessorNameString"), None)


def operating_system() -> OperatingSystem:
    """``version`` is the marketing one (11), ``kernel`` the build (10.0.26100)."""
    return OperatingSystem(
        family="windows", name="Windows", version=platform.release() or None, kernel=platform.version() or None
    )


def environment() -> Environment:
    """Whether a Windows is virtual cannot be told from here with certainty."""
    return Environment(kind="unknown", name=None, version=None)


def memory_limit() -> int:
    """No limit below the machine's memory."""
    return sys.maxsize


def accelerators(first: int) -> list[Accelerator]:
    """None but NVIDIA's, which NVML tells."""
    return []


def _value(key: str, name: str) -> str | None:
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            value, kind = winreg.QueryValueEx(opened, name)
    except OSError:
        return None
    return value.strip() or None if kind == winreg.REG_SZ else None
