"""macOS' description of the machine, through ``sysctlbyname``. Not exercised on a Mac yet; the names are Apple's."""

from __future__ import annotations

import ctypes
import platform
import sys

from appliance.core.machine import Accelerator, AcceleratorMemory, CpuNames, Environment, OperatingSystem


def cpu_names() -> CpuNames:
    """Intel Macs name their vendor; Apple's own processors have it in the model ("Apple M4 Max")."""
    model = _text("machdep.cpu.brand_string")
    vendor = "Apple" if is_apple() else {"GenuineIntel": "Intel"}.get(_text("machdep.cpu.vendor") or "")
    return CpuNames(vendor, model, _number("hw.packages"))


def operating_system() -> OperatingSystem:
    """Return the product's version, not Darwin's, which is the kernel's."""
    version = platform.mac_ver()[0] or None
    return OperatingSystem(family="macos", name="macOS", version=version, kernel=platform.release() or None)


def environment() -> Environment:
    """macOS has no containers; a virtual machine knows that it is one."""
    kinds = {0: "native", 1: "virtual_machine"}
    return Environment(kind=kinds.get(_number("kern.hv_vmm_present", -1) or 0, "unknown"), name=None, version=None)


def memory_limit() -> int:
    """No limit below the machine's memory."""
    return sys.maxsize


def accelerators(first: int) -> list[Accelerator]:
    """Return the GPU that is part of every Apple processor and shares its memory. Those of Intel Macs are not
    reported.
    """
    if not is_apple():
        return []
    memory = AcceleratorMemory(kind="unified", capacity_bytes=_number("hw.memsize"))
    model = _text("machdep.cpu.brand_string")
    return [
        Accelerator(
            index=first,
            vendor="Apple",
            model=model,
            architecture=None,
            memory=memory,
            driver=None,
            power_limit_watts=None,
        )
    ]


def build() -> str:
    """Return the build of the system, ``24B83``; empty if unknown."""
    return _text("kern.osversion") or ""


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
    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    value = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.raw[: size.value]
