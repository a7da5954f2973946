"""The result of one look at the machine. A separate process looks (`engines.machine_process`), because drivers may
crash it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

VISIBILITY = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_CUDA_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "ONEAPI_DEVICE_SELECTOR", "ZES_ENABLE_SYSMAN",
)  # fmt: skip
"""Variables by which somebody hides devices from engines, or orders them; engines get them unchanged."""

NOTHING: Mapping[str, str] = {}


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


class Look(Struct, frozen=True, kw_only=True):
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
