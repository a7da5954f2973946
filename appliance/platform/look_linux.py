"""The facts about a Linux machine that engines depend on. ``root`` is where to look for its files."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import psutil

from appliance.core.engines.machine import Gpu
from appliance.platform import cgroups, gpu_files
from appliance.platform.drm import read_text
from appliance.platform.hardware_linux import cpu_names
from appliance.platform.libraries import loaders as installed_loaders

ROOT = Path("/")
NO_CUDA_IN_WSL = (
    "Windows lends its cards to WSL, and there is no libcuda.so.1 from it: install the vendor's driver on Windows"
)


def system() -> str:
    """Return the kernel with its build."""
    return f"{platform.system()} {platform.release()}"


def cpu(root: Path = ROOT) -> str:
    """Return the processor's name."""
    return cpu_names(root).model or platform.machine()


def memory(root: Path = ROOT) -> tuple[int, int]:
    """Return the bytes in all, and the bytes that programs can still get."""
    told = psutil.virtual_memory()
    return min(told.total, cgroups.memory_limit(root)), min(told.available, cgroups.memory_left(root))


def cores(root: Path = ROOT) -> int:
    """Return the processors that this program may use."""
    return cgroups.cores(root)


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the cards of ``nvidia`` (without their library), ``amd`` or ``intel``."""
    looks = {"nvidia": gpu_files.nvidia_from_files, "amd": gpu_files.amd, "intel": gpu_files.intel}
    return looks[vendor](root) if vendor in looks else []


def problems(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the drivers that exist and are not usable, one line each."""
    lent = (root / "dev/dxg").exists() and not loaders(root, environ)["cuda"]
    return gpu_files.problems(root) + ([NO_CUDA_IN_WSL] if lent else [])


def loaders(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """See `libraries.loaders`."""
    return installed_loaders(root, environ)


def nvidia_is_loaded(root: Path = ROOT) -> bool:
    """True if the kernel runs NVIDIA's driver."""
    return bool(gpu_files.nvidia_version(root)) or read_text(root / "sys/module/nvidia/initstate") is not None
