"""Linux' description of the machine, in ``/proc``, ``/sys`` and a few marker files; other Unixes have some of it.

``root`` is where to look for those files.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from appliance.core.machine import Accelerator, CpuNames, Environment, OperatingSystem
from appliance.platform import cgroups
from appliance.platform.drm import accelerator, find_cards, read_number, read_text

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


def cpu_names(root: Path = ROOT) -> CpuNames:
    """Return the names of the first processor; it stands for machines with different ones."""
    text = read_text(root / CPUINFO) or ""
    vendor = _field(text, "vendor_id") or _field(text, "CPU implementer")
    return CpuNames(VENDORS.get(vendor or "", vendor), _field(text, "model name"), _sockets(root, text))


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


def environment(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Environment:
    """Return the kind of system around this process, the innermost one: a container in a virtual machine is a
    container.
    """
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


def memory_limit(root: Path = ROOT) -> int:
    """Return the bytes that the container's control group allows; a number beyond any memory without a limit."""
    return cgroups.memory_limit(root)


def accelerators(first: int, root: Path = ROOT) -> list[Accelerator]:
    """Return the GPUs other than NVIDIA's, numbered from ``first``."""
    sys_folder = root / "sys"
    return [accelerator(card, first + at, sys_folder) for at, card in enumerate(find_cards(sys_folder))]


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
