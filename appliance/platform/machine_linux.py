"""Linux' description of the machine, in ``/proc``, ``/sys`` and a few marker files; other Unixes have some of it.

``root`` is where to look for those files. Source: Linux' names in ``/proc/cpuinfo``.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from appliance.core.machine import CpuNames, Environment, OperatingSystem
from appliance.core.machine_look import Gpu, arm_level, x86_level
from appliance.platform import cards_linux, groups_linux
from appliance.platform.libraries import WANTED, find_library, loaders
from appliance.platform.small_files_linux import read_number, read_text

ROOT = Path("/")
CPUINFO = "proc/cpuinfo"
VENDORS = {
    "GenuineIntel": "Intel",
    "AuthenticAMD": "AMD",
    "0x41": "ARM",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}
"""``vendor_id`` of x86; ``CPU implementer`` of ARM (Arm's MIDR_EL1)."""
CONTAINER_FILES = {"run/.containerenv": "Podman", ".dockerenv": "Docker"}
CONTAINER_NAMES = {"docker": "Docker", "podman": "Podman", "lxc": "LXC", "oci": None}
MACHINES = (
    ("kvm", "KVM"),
    ("qemu", "QEMU"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("microsoft", "Hyper-V"),
    ("xen", "Xen"),
    ("amazon ec2", "Amazon EC2"),
    ("google compute engine", "Google Compute Engine"),
    ("parallels", "Parallels"),
    ("bochs", "Bochs"),
)
"""Firmware names of virtual machines; asked only if the processor says that it is virtual."""
X86 = (
    "sse3", "ssse3", "sse4_1", "sse4_2", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni", "avx512f", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
)  # fmt: skip
"""The features that distinguish llama.cpp's variants for x86."""
ARM = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
       "sve2": "sve2", "sme": "sme"}  # fmt: skip
"""Linux' names, mapped to the compiler's."""
SHARED_MEMORY = "dev/shm"
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
"""Folders whose times mean nothing, because the kernel makes them up."""
NO_CUDA_IN_WSL = (
    "Windows lends its cards to WSL, and there is no libcuda.so.1 from it: install the vendor's driver on Windows"
)


def cpu_names(root: Path = ROOT) -> CpuNames:
    """Return the names of the first processor; it stands for machines with different ones."""
    text = read_text(root / CPUINFO) or ""
    vendor = _field(text, "vendor_id") or _field(text, "CPU implementer")
    return CpuNames(VENDORS.get(vendor or "", vendor), _field(text, "model name"), _sockets(root, text))


def cpu_level(root: Path = ROOT) -> tuple[str, tuple[str, ...]]:
    """Return the level (``x86-64-v3``, ``armv8.2-a``; empty: unknown) and the features."""
    text = read_text(root / CPUINFO) or ""
    if flags := _field(text, "flags"):
        known = {*flags.split()}
        known |= {"sse3"} if "pni" in known else set()
        return x86_level(known), tuple(name for name in X86 if name in known)
    if features := _field(text, "Features"):
        known = {*features.split()}
        return arm_level({ARM[name] for name in ARM if name in known}), tuple(
            ARM[name] for name in ARM if name in known
        )
    return "", ()


def operating_system(root: Path = ROOT) -> OperatingSystem:
    """Return the distribution, from ``os-release``."""
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    facts = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", text, re.MULTILINE))
    family = platform.system().lower()
    known = family in ("linux", "freebsd")
    return OperatingSystem(
        family=family if known else "other",
        name=facts.get("NAME"),
        version=facts.get("VERSION_ID"),
        kernel=platform.release() or None,
        raw_family=None if known else family or "unknown",
    )


def system() -> str:
    """Return the kernel with its build."""
    return f"{platform.system()} {platform.release()}"


def environment(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Environment:
    """Return the innermost kind of system around this process: a container in a virtual machine is a container."""
    release = read_text(root / "proc/sys/kernel/osrelease") or ""
    if container := _container(root, environ):
        return container
    if "microsoft" in release.lower():
        return Environment(kind="wsl", name="WSL", version="2" if "wsl2" in release.lower() else None)
    text = read_text(root / CPUINFO) or ""
    flags = (_field(text, "flags") or "").split()
    firmware = " ".join(read_text(root / "sys/class/dmi/id" / name) or "" for name in ("sys_vendor", "product_name"))
    name = next((name for word, name in MACHINES if word in firmware.lower()), None)
    if "hypervisor" in flags:
        return Environment(kind="virtual_machine", name=name, version=None)
    return Environment(kind="native" if flags else "unknown", name=None, version=None)


def gpus_of(vendor: str, root: Path = ROOT) -> list[Gpu]:
    """Return the cards of ``nvidia`` (without their library), ``amd`` or ``intel``."""
    looks = {"nvidia": cards_linux.nvidia_from_files, "amd": cards_linux.amd, "intel": cards_linux.intel}
    return looks[vendor](root) if vendor in looks else []


def problems(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the drivers that exist and are not usable, one line each."""
    lent = (root / "dev/dxg").exists() and not loaders(root, environ)["cuda"]
    return cards_linux.problems(root) + ([NO_CUDA_IN_WSL] if lent else [])


# ---- what this process may use ---------------------------------------------------------------------------------------


def memory_limits(root: Path = ROOT) -> tuple[int, int]:
    """Return the bytes that this process and its group may have in all, and those that are unused.

    File pages that the kernel would give up count as unused. Without a limit it is `sys.maxsize`.
    """
    found = [*groups_linux.memory(root), (sys.maxsize, sys.maxsize)]
    return min(limit for limit, _ in found), min(left for _, left in found)


def memory_folder(root: Path = ROOT) -> Path | None:
    """Return the folder whose files lie in memory, if this process may write there."""
    mounts = (line.split() for line in (read_text(root / "proc/self/mounts") or "").splitlines())
    found = root / SHARED_MEMORY
    is_there = any(mount[1:3] == [f"/{SHARED_MEMORY}", "tmpfs"] for mount in mounts)
    return found if is_there and os.access(found, os.W_OK | os.X_OK) else None


def processors(root: Path = ROOT) -> int:
    """Return the processors that this process may run on, by affinity and its groups' sets; at least one."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)
    return max(1, int(min(usable, groups_linux.processors(root))))


def cores(root: Path = ROOT) -> int:
    """Return the processors that this process may use at once, a begun one included; at least one."""
    return math.ceil(min(processors(root), groups_linux.quota(root)))


# ---- changes ---------------------------------------------------------------------------------------------------------


def signature(root: Path = ROOT) -> str:
    """Return a word that changes when a GPU or a driver does, as far as files show."""
    return f"{zlib.crc32(chr(10).join(_signs(root)).encode()):08x}"


def with_sleep() -> float:
    """Return seconds on a clock that continues while the machine sleeps, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def without_sleep() -> float:
    """Return seconds on a clock that stands still meanwhile."""
    return time.monotonic()


def _signs(root: Path) -> Iterator[str]:
    if version := read_text(root / "proc/driver/nvidia/version"):
        # A container sees the kernel's module of its host, with a card or without. The driver's library comes with the
        # card.
        yield f"{version} {find_library(WANTED['cuda'], root)}"
    for module in MODULES:
        folder = root / "sys/module" / module
        if folder.is_dir():
            yield f"{module} {read_text(folder / 'version') or ''} {read_text(folder / 'srcversion') or ''}"
    for name in FOLDERS:
        # The signature answers "has anything changed?" from files alone. To ask the drivers would wake sleeping cards
        # and may hang. A change too many costs one look; a missed one leaves a model on the wrong device, so all that
        # is cheap counts.
        yield f"{name} {_times(root / name, timed=name not in LISTED)}"
    yield f"kfd {os.access(root / 'dev/kfd', os.R_OK | os.W_OK)} dxg {(root / 'dev/dxg').exists()}"


def _times(folder: Path, *, timed: bool) -> str:
    try:
        with os.scandir(folder) as entries:
            return " ".join(sorted(f"{entry.name}:{entry.stat().st_mtime_ns if timed else ''}" for entry in entries))
    except OSError:
        return ""


# ---- parts -----------------------------------------------------------------------------------------------------------


def _container(root: Path, environ: Mapping[str, str]) -> Environment | None:
    for file, name in CONTAINER_FILES.items():
        if (root / file).exists():
            return Environment(kind="container", name=name, version=None)
    told = environ.get("container") or read_text(root / "run/systemd/container")  # systemd's container interface
    if told:
        return Environment(kind="container", name=CONTAINER_NAMES.get(told, told), version=None)
    if "KUBERNETES_SERVICE_HOST" in environ:
        return Environment(kind="container", name="Kubernetes", version=None)
    return None


def _sockets(root: Path, cpuinfo: str) -> int | None:
    told = set(re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo, re.MULTILINE))
    if not told:
        folder = root / "sys/devices/system/cpu"
        ids = (read_number(path) for path in folder.glob("cpu[0-9]*/topology/physical_package_id"))
        told = {number for number in ids if number is not None and number >= 0}
    return len(told) or None


def _field(cpuinfo: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return (found[1].strip() or None) if found else None
