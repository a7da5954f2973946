"""Detects that the machine was asleep, and that a GPU or its driver has come, gone or changed, at no cost.

The owner of engines asks every half minute, and examines everything again after such an event.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.platform.drm import read_text

SLEPT = 5.0
"""Seconds by which the clocks must differ: a smaller difference is a corrected clock."""
MODULES = ("nvidia", "nouveau", "nova_core", "amdgpu", "i915", "xe")
FOLDERS = (
    "usr/share/vulkan/icd.d",
    "etc/vulkan/icd.d",
    "usr/lib/wsl/drivers",
    "sys/class/drm",
    "proc/driver/nvidia/gpus",
)
"""Folders whose entries and times of change count: Vulkan's drivers, Windows' drivers under WSL, cards."""
LISTED = ("sys/class/drm", "proc/driver/nvidia/gpus")
"""Counters whose times mean nothing, because the kernel makes them up."""
ROOT = Path("/")

Clock = Callable[[], float]


def with_sleep() -> float:
    """Return seconds on a clock that continues while the machine sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()


def without_sleep() -> float:
    """Return seconds on a clock that stands still meanwhile; on Windows it does so only as far as the system lets
    it.
    """
    if sys.platform == "win32":
        return _unbiased()
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_UPTIME_RAW)
    return time.monotonic()


class Suspends:
    """Knows whether the machine was asleep since the last question (or since it was made)."""

    def __init__(self, running: Clock = without_sleep, always: Clock = with_sleep) -> None:
        self._running, self._always = running, always
        self._behind = always() - running()

    def happened(self) -> bool:
        """True if it was asleep for `SLEPT` seconds or more. A wall clock that was set forward looks the same."""
        before, self._behind = self._behind, self._always() - self._running()
        return self._behind - before >= SLEPT


def hardware_signature(root: Path = ROOT) -> str:
    """Return a word that changes when a GPU or a driver does, as far as files show; constant on Windows and macOS."""
    if sys.platform != "linux":
        return "none"
    facts = "\n".join(_facts(root))
    return f"{zlib.crc32(facts.encode()):08x}"


def _facts(root: Path) -> Iterator[str]:
    yield read_text(root / "proc/driver/nvidia/version") or ""
    for module in MODULES:
        folder = root / "sys/module" / module
        if folder.is_dir():
            yield f"{module} {read_text(folder / 'version') or ''} {read_text(folder / 'srcversion') or ''}"
    for name in FOLDERS:
        yield f"{name} {_entries(root / name, timed=name not in LISTED)}"
    yield f"kfd {os.access(root / 'dev/kfd', os.R_OK | os.W_OK)} dxg {(root / 'dev/dxg').exists()}"


def _entries(folder: Path, *, timed: bool) -> str:
    try:
        with os.scandir(folder) as entries:
            return " ".join(sorted(f"{entry.name}:{entry.stat().st_mtime_ns if timed else ''}" for entry in entries))
    except OSError:
        return ""


def _unbiased() -> float:
    """Return seconds without sleep (QueryUnbiasedInterruptTime)."""
    import ctypes

    assert sys.platform == "win32"
    ticks = ctypes.c_uint64()
    ctypes.windll.kernel32.QueryUnbiasedInterruptTime(ctypes.byref(ticks))
    return ticks.value / 1e7
