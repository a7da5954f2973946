"""The result of one look at the machine. A separate process looks (`features.engines.driver_process`), because drivers
may crash it. Levels of processors follow the x86-64 psABI.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

VISIBILITY = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_CUDA_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "ONEAPI_DEVICE_SELECTOR", "ZES_ENABLE_SYSMAN",
)  # fmt: skip
"""Variables by which somebody hides devices from engines, or orders them; engines get them unchanged.

NVIDIA_VISIBLE_DEVICES is not among them. NVIDIA's container runtime reads it before the container starts, and most
containers with a card have it. Drivers and engines do not know it."""

PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
LEVELS = (
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    ("x86-64-v2", frozenset({"cx16", "popcnt", "ssse3", "sse4_1", "sse4_2"})),
    ("x86-64-v1", frozenset({"sse2"})),
)
"""Each level includes those below it."""

NOTHING: Mapping[str, str] = {}
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
PLATFORMS = tuple(f"{system}-{machine}" for system in SYSTEMS.values() for machine in sorted(set(MACHINES.values())))


def platform_of(system: str, machine: str) -> str:
    """Return ``linux-x64``, ``macos-arm64``, ``windows-x64`` ... from ``sys.platform`` and ``uname -m``."""
    return f"{SYSTEMS.get(system, system)}-{MACHINES.get(machine.lower(), machine.lower())}"


def threads_for(processors: int, physical: int | None, quota: float) -> int:
    """Return the threads of a model that computes on the processor: all but one core, within the quota, at least one.

    With all cores taken by an engine's spinning threads, relaying one token took over a second (measured on 2 cores).
    Under a quota other cores are idle. But threads beyond it stop all of the group for a part of each period, so a
    begun processor is left to the program.
    """
    return max(1, int(min(processors - 1, (physical or processors) - 1, quota)))


class Gpu(Struct, frozen=True, kw_only=True):
    """One card as its driver reports it, whatever engines make of it. Sizes in bytes; None: unknown."""

    vendor: str
    name: str
    driver: str
    """The driver's name: nvidia, amdgpu, i915, xe ..."""
    driver_version: str = ""
    pci: str | None = None
    uuid: str | None = None
    total: int | None = None
    free: int | None = None
    compute: str | None = None
    """CUDA compute capability, ``9.0``."""
    gfx: str | None = None
    """AMD's target, ``gfx1100``."""
    integrated: bool | None = None
    architecture: str | None = None
    """The maker's name of its generation, ``Hopper``; known for NVIDIA's."""
    power_limit: float | None = None
    """Watts."""


class MachineLook(Struct, frozen=True, kw_only=True):
    """The machine, without starting an engine. Sizes in bytes."""

    platform: str
    system: str
    """The operating system with its build: ``Linux 6.1.0-40-amd64``, ``Windows 10.0.26100.4061``."""
    environment: str
    """native, container, virtual_machine, wsl, unknown."""
    cpu: str
    cpu_level: str = ""
    """``x86-64-v3``, ``armv8.2-a+dotprod`` ...; empty if unknown."""
    cpu_features: tuple[str, ...] = ()
    cores: int = 1
    """Cores that this program may use, with affinity and the container's quota."""
    memory_total: int = 0
    """Memory available to programs here: the smaller of the machine's memory and the container's limit."""
    memory_available: int = 0
    gpus: tuple[Gpu, ...] = ()
    loaders: Mapping[str, str] = NOTHING
    """Files that GPU builds need from the system, by ``vulkan``, ``cuda``, ``rocm``; empty if not found."""
    hidden: Mapping[str, str] = NOTHING
    """Variables of `VISIBILITY` that are set."""
    problems: tuple[str, ...] = ()
    """Drivers that exist and do not answer, one line each."""


def normal_pci(text: str) -> str | None:
    """Convert ``00000000:01:00.0`` to ``0000:01:00.0``, lower case; None for text that is not a place on a bus."""
    if not PCI.fullmatch(text.strip()):
        return None
    domain, rest = text.strip().lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def x86_level(flags: Collection[str]) -> str:
    """Return the highest level whose features, and those of the levels below it, are all there."""
    best = ""
    for name, needed in reversed(LEVELS):
        if not needed <= {*flags}:
            break
        best = name
    return best


def arm_level(features: Collection[str]) -> str:
    """Return the least architecture that has these features."""
    if "sme" in features or "sve2" in features:
        return "armv9-a"
    if "i8mm" in features or "bf16" in features:
        return "armv8.6-a"
    return "armv8.2-a" if "dotprod" in features else "armv8-a"
