"""The facts about a Windows machine that engines depend on. Not exercised on one yet; the names are Microsoft's."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from appliance.core.engines.machine import Gpu
from appliance.platform import hardware_windows
from appliance.platform.libraries import loaders as installed_loaders

assert sys.platform == "win32"

ROOT = Path("/")


def system() -> str:
    """The version with its build and revision: ``Windows 10.0.26100.4061``."""
    return f"Windows {platform.version()}.{hardware_windows.revision()}"


def cpu(root: Path = ROOT) -> str:
    """The processor's name."""
    return hardware_windows.cpu_names().model or platform.machine()


def memory(root: Path = ROOT) -> tuple[int, int]:
    """Bytes in all, and bytes that programs can still get."""
    told = psutil.virtual_memory()
    return told.total, told.available


def cores(root: Path = ROOT) -> int:
    """Processors that this program may use."""
    return len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the vendor's cards, as their drivers entered them in the registry."""
    return [gpu for gpu in hardware_windows.gpus() if gpu.vendor.lower() == vendor]


def problems(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Nothing can be reported here."""
    return []


def loaders(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """See `libraries.loaders`."""
    return installed_loaders(root, environ)


def nvidia_is_loaded(root: Path = ROOT) -> bool:
    """True if NVIDIA's driver has entered a card."""
    return bool(gpus_of("nvidia"))
