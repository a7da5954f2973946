"""The program's description of its machine: samples over time, and the hardware once.

The names are those of llama-swap (0bdb3720), so that readers of its ``/api/performance`` and ``/api/hardware`` can read
these. A value that a system does not report is None (JSON null), never a made-up zero.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv7l": "armv7",
    "ppc64le": "ppc64le",
    "riscv64": "riscv64",
    "s390x": "s390x",
}


class NetworkCounters(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes since the interface came up."""

    name: str
    bytes_recv: int
    bytes_sent: int


class SystemSample(Struct, frozen=True, kw_only=True):
    """One look at processors, memory (MiB) and network. Load averages do not exist on Windows."""

    timestamp: datetime
    cpu_util_per_core: tuple[float, ...]
    """Percent busy since the previous sample."""
    mem_total_mb: int
    mem_used_mb: int
    mem_free_mb: int
    swap_total_mb: int
    swap_used_mb: int
    load_avg_1: float | None
    load_avg_5: float | None
    load_avg_15: float | None
    net_io: tuple[NetworkCounters, ...]


class GpuSample(Struct, frozen=True, kw_only=True, gc=False):
    """One look at one GPU. ``mem_util_pct`` is how busy its memory is, not how full."""

    timestamp: datetime
    id: int
    name: str
    uuid: str | None = None
    temp_c: int | None = None
    vram_temp_c: int | None = None
    gpu_util_pct: float | None = None
    mem_util_pct: float | None = None
    mem_used_mb: int | None = None
    mem_total_mb: int | None = None
    fan_speed_pct: float | None = None
    power_draw_w: float | None = None


class Sample(Struct, frozen=True, kw_only=True):
    """All results of one look."""

    system: SystemSample
    gpus: tuple[GpuSample, ...] = ()


class MachinePerformance(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/performance``; ``gpu_stats`` is None if no GPU reports anything."""

    enabled: bool = True
    sys_stats: tuple[SystemSample, ...] = ()
    gpu_stats: tuple[GpuSample, ...] | None = None


class Detector(Struct, frozen=True, kw_only=True):
    """The program that examined the machine."""

    name: str
    version: str


class Method(Struct, frozen=True, kw_only=True):
    """The method by which the facts were found."""

    scope: str = "inference_host"
    method: str = "detected"
    detector: Detector


class Architecture(Struct, frozen=True, kw_only=True):
    """``name`` is one of x86_64, arm64, armv7, ppc64le, riscv64, s390x, other; ``raw_name`` the system's own word."""

    name: str
    raw_name: str | None


class OperatingSystem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``family`` is one of linux, macos, windows, freebsd, other (then ``raw_family`` says which)."""

    family: str
    name: str | None
    version: str | None
    kernel: str | None
    raw_family: str | None = None


class Environment(Struct, frozen=True, kw_only=True):
    """``kind`` is one of native, container, virtual_machine, wsl, unknown."""

    kind: str
    name: str | None
    version: str | None


class Processor(Struct, frozen=True, kw_only=True):
    """The processors as one; every count is positive or unknown."""

    vendor: str | None
    model: str | None
    socket_count: int | None
    physical_core_count: int | None
    logical_thread_count: int | None


class MainMemory(Struct, frozen=True, kw_only=True):
    """Memory available to programs here: the smaller of the machine's memory and the container's limit."""

    capacity_bytes: int


class AcceleratorMemory(Struct, frozen=True, kw_only=True):
    """``kind`` is one of dedicated, unified, shared_system, unknown."""

    kind: str
    capacity_bytes: int | None


class Driver(Struct, frozen=True, kw_only=True):
    """The kernel's driver of an accelerator."""

    name: str | None
    version: str | None


class Accelerator(Struct, frozen=True, kw_only=True):
    """One GPU. ``index`` counts from 0 over all vendors and is the ``id`` of its samples."""

    index: int
    kind: str = "gpu"
    vendor: str | None
    model: str | None
    architecture: str | None
    memory: AcceleratorMemory
    driver: Driver | None
    power_limit_watts: float | None


class Hardware(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/hardware``."""

    schema_version: int = 1
    captured_at: datetime
    capture: Method
    architecture: Architecture
    operating_system: OperatingSystem
    environment: Environment
    cpu: Processor
    memory: MainMemory
    accelerators: tuple[Accelerator, ...]


class CpuNames(Struct, frozen=True):
    """Facts about its processors that only the operating system knows. None means unknown."""

    vendor: str | None
    model: str | None
    sockets: int | None


def architecture_of(machine: str) -> Architecture:
    """Return the architecture for the word of ``uname -m`` or Windows."""
    return Architecture(name=ARCHITECTURES.get(machine.lower(), "other"), raw_name=machine or None)
