"""The facts about a Mac that engines depend on. Not exercised on one yet; the names are Apple's."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import psutil

from appliance.core.engines.machine import Gpu
from appliance.platform import hardware_macos

ROOT = Path("/")


def system() -> str:
    """The product's version with its build."""
    return f"macOS {platform.mac_ver()[0]} ({hardware_macos.build()})"


def cpu(root: Path = ROOT) -> str:
    """The processor's name."""
    return hardware_macos.cpu_names().model or platform.machine()


def memory(root: Path = ROOT) -> tuple[int, int]:
    """Bytes in all, and bytes that programs can still get."""
    told = psutil.virtual_memory()
    return told.total, told.available


def cores(root: Path = ROOT) -> int:
    """Processors that this program may use."""
    return os.cpu_count() or 1


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the GPU of Apple's processors, which shares their memory."""
    if vendor != "apple" or not hardware_macos.is_apple():
        return []
    total, available = memory()
    name = hardware_macos.cpu_names().model or "Apple GPU"
    return [Gpu(vendor="Apple", name=name, driver="metal", total=total, free=available, integrated=True)]


def problems(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Nothing can be reported here."""
    return []


def loaders(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Metal is part of the system."""
    return {"metal": "/System/Library/Frameworks/Metal.framework"} if hardware_macos.is_apple() else {}


def nvidia_is_loaded(root: Path = ROOT) -> bool:
    """NVIDIA has no driver for any current macOS."""
    return False
