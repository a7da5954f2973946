"""macOS' description of the machine, through ``sysctlbyname``. Not exercised on a Mac yet; the names are Apple's."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

from appliance.core.machine import CpuNames, Environment, OperatingSystem
from appliance.core.machine_look import Gpu, arm_level

ROOT = Path("/")
APPLE = {"FEAT_DotProd": "dotprod", "FEAT_FP16": "fp16", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16", "FEAT_SME": "sme"}
INTEL_MAC = {"supplementalsse3": "ssse3", "sse4_1": "sse4_1", "sse4_2": "sse4_2", "avx1_0": "avx", "avx2_0": "avx2",
             "fma": "fma", "bmi2": "bmi2", "f16c": "f16c", "avx512f": "avx512f"}  # fmt: skip


def cpu_names(root: Path = ROOT) -> CpuNames:
    """Intel Macs name their vendor; Apple's own processors have it in the model ("Apple M4 Max")."""
    model = _text("machdep.cpu.brand_string")
    vendor = "Apple" if is_apple() else {"GenuineIntel": "Intel"}.get(_text("machdep.cpu.vendor") or "")
    return CpuNames(vendor, model, _number("hw.packages"))


def operating_system() -> OperatingSystem:
    """Return the product's version, not Darwin's, which is the kernel's."""
    version = platform.mac_ver()[0] or None
    return OperatingSystem(family="macos", name="macOS", version=version, kernel=platform.release() or None)


def environment(root: Path = ROOT) -> Environment:
    """macOS has no containers; a virtual machine knows that it is one."""
    kinds = {0: "native", 1: "virtual_machine"}
    return Environment(kind=kinds.get(_number("kern.hv_vmm_present", -1) or 0, "unknown"), name=None, version=None)


def cpu_level(root: Path = ROOT) -> tuple[str, tuple[str, ...]]:
    """Return the level (``x86-64-v3``, ``armv8.2-a``) and the features."""
    if is_apple():
        features = ["neon", *(name for feature, name in APPLE.items() if has_feature(f"arm.{feature}"))]
        return arm_level(features), tuple(features)
    features = [name for feature, name in INTEL_MAC.items() if has_feature(feature)]
    level = "x86-64-v4" if "avx512f" in features else "x86-64-v3" if "avx2" in features else "x86-64-v2"
    return level, tuple(features)


def system() -> str:
    """The product's version with its build."""
    return f"macOS {platform.mac_ver()[0]} ({_text('kern.osversion') or ''})"


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the GPU of Apple's processors, which shares their memory."""
    if vendor != "apple" or not is_apple():
        return []
    import psutil  # seven milliseconds, and the server asks this module for little else

    memory = psutil.virtual_memory()
    name = cpu_names().model or "Apple GPU"
    return [Gpu(vendor="Apple", name=name, driver="metal", total=memory.total, free=memory.available, integrated=True)]


def problems(root: Path = ROOT) -> list[str]:
    """Nothing can be reported here."""
    return []


def loaders(root: Path = ROOT) -> dict[str, str]:
    """Metal is part of the system."""
    return {"metal": "/System/Library/Frameworks/Metal.framework"} if is_apple() else {}


def memory_limits(root: Path = ROOT) -> tuple[int, int]:
    """No limit below the machine's memory."""
    return sys.maxsize, sys.maxsize


def memory_folder(root: Path = ROOT) -> Path | None:
    """macOS has no folder whose files lie in memory."""
    return None


def cores(root: Path = ROOT) -> int:
    """Processors that this program may use."""
    return os.cpu_count() or 1


processors = cores


def signature(root: Path = ROOT) -> str:
    """No file shows a change of drivers here."""
    return "none"


def with_sleep() -> float:
    """Return seconds on a clock that continues while the machine sleeps, and that nobody sets."""
    assert sys.platform == "darwin"
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)  # unlike Linux, macOS counts sleep in it: clock_gettime(3)


def without_sleep() -> float:
    """Return seconds on a clock that stands still meanwhile."""
    assert sys.platform == "darwin"
    return time.clock_gettime(time.CLOCK_UPTIME_RAW)


def has_feature(name: str) -> bool:
    """True if the processor has the feature that Apple calls ``hw.optional.NAME``."""
    return bool(_number(f"hw.optional.{name}", 0))


def is_apple() -> bool:
    """True also under Rosetta, where the machine calls itself x86_64."""
    return (_text("machdep.cpu.brand_string") or "").startswith("Apple")


def _text(name: str) -> str | None:
    raw = _sysctl(name)
    return None if raw is None else raw.rstrip(b"\0").decode(errors="replace") or None


def _number(name: str, missing: int | None = None) -> int | None:
    raw = _sysctl(name)
    return missing if raw is None else int.from_bytes(raw, sys.byteorder)


def _sysctl(name: str) -> bytes | None:
    import ctypes  # the server asks this module for its clocks alone

    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    value = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.raw[: size.value]
