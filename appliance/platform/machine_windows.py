"""Windows' description of the machine, in its registry. Not exercised on a Windows machine yet."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from appliance.core.machine import CpuNames, Environment, OperatingSystem
from appliance.core.machine_look import Gpu, arm_level
from appliance.platform.libraries import loaders as loaders

assert sys.platform == "win32"

import winreg  # noqa: E402

ROOT = Path("/")
PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
SYSTEM = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion"
DISPLAYS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
"""The setup class of display adapters: a numbered key for each one that was ever installed."""
MAX_DISPLAYS = 32
GPU_VENDORS = {"ven_10de": ("NVIDIA", "nvidia"), "ven_1002": ("AMD", "amdgpu"), "ven_8086": ("Intel", "intel")}
VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
WINDOWS = {13: "sse3", 36: "ssse3", 37: "sse4_1", 38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f", 43: "dotprod"}


def cpu_names(root: Path = ROOT) -> CpuNames:
    """Return the first processor under its firmware name. The registry does not have the number of sockets."""
    vendor = _value(PROCESSOR, "VendorIdentifier")
    return CpuNames(VENDORS.get(vendor or "", vendor), _value(PROCESSOR, "ProcessorNameString"), None)


def operating_system() -> OperatingSystem:
    """``version`` is the marketing one (11), ``kernel`` the build (10.0.26100)."""
    return OperatingSystem(
        family="windows", name="Windows", version=platform.release() or None, kernel=platform.version() or None
    )


def environment(root: Path = ROOT) -> Environment:
    """A virtual Windows cannot be recognised from here with certainty."""
    return Environment(kind="unknown", name=None, version=None)


def cpu_level(root: Path = ROOT) -> tuple[str, tuple[str, ...]]:
    """Windows reports only a few features; every processor with AVX2 that it runs on has the rest of its level."""
    present = ctypes.windll.kernel32.IsProcessorFeaturePresent
    features = [name for number, name in WINDOWS.items() if present(number)]
    if platform.machine().lower() == "arm64":
        return arm_level(features), ("neon", *features)
    for word, level in (("avx512f", "x86-64-v4"), ("avx2", "x86-64-v3"), ("sse4_2", "x86-64-v2")):
        if word in features:
            return level, tuple(features)
    return "x86-64-v1", tuple(features)


def system() -> str:
    """The version with its build and revision: ``Windows 10.0.26100.4061``, and ``, session 0`` of a service.

    Services see other devices than the programs of somebody who is logged in, so proofs of one do not hold for both.
    """
    revision = _raw(SYSTEM, "UBR")  # every monthly update raises it
    place = ", session 0" if _is_session_0() else ""
    return f"Windows {platform.version()}.{revision if isinstance(revision, int) else 0}{place}"


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the vendor's cards, as their drivers entered them in the registry."""
    return [gpu for gpu in _gpus() if gpu.vendor.lower() == vendor]


def problems(root: Path = ROOT) -> list[str]:
    """Nothing can be reported here."""
    return []


def memory_limits(root: Path = ROOT) -> tuple[int, int]:
    """No limit below the machine's memory."""
    return sys.maxsize, sys.maxsize


def memory_folder(root: Path = ROOT) -> Path | None:
    """Windows has no folder whose files lie in memory."""
    return None


def cores(root: Path = ROOT) -> int:
    """Processors that this program may use."""
    import psutil  # seven milliseconds, and the server asks this module for little else

    return len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1


processors = cores


def signature(root: Path = ROOT) -> str:
    """No file shows a change of drivers here; a look from the other kind of session does not count for this one."""
    return "session 0" if _is_session_0() else "none"


def with_sleep() -> float:
    """Return seconds on a clock that continues while the machine sleeps, and that nobody sets; 16 ms are a step."""
    ticks = ctypes.windll.kernel32.GetTickCount64
    ticks.restype = ctypes.c_uint64
    return ticks() / 1000


def without_sleep() -> float:
    """Return seconds on a clock that stands still meanwhile, as far as the system lets it."""
    ticks = ctypes.c_uint64()
    ctypes.windll.kernel32.QueryUnbiasedInterruptTime(ctypes.byref(ticks))
    return ticks.value / 1e7


def _is_session_0() -> bool:
    """True in the session that is for services alone; unknown counts as somebody's own."""
    session = ctypes.c_uint32(1)
    ctypes.windll.kernel32.ProcessIdToSessionId(os.getpid(), ctypes.byref(session))
    return session.value == 0


def _gpus() -> list[Gpu]:
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
