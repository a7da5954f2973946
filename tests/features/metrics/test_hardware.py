"""The description of this machine, and of others from their files."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from file_trees import write

from appliance import __version__
from appliance.core.machine import CpuNames, Environment, architecture_of
from appliance.features.engines.source import MachineEngines
from appliance.features.metrics.hardware import detect
from appliance.platform import machine_linux as linux

KINDS = ("native", "container", "virtual_machine", "wsl", "unknown")
XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6430
physical id\t: 0
flags\t\t: fpu vme sse2

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6430
physical id\t: 1
flags\t\t: fpu vme sse2
"""
VIRTUAL = XEON.replace("sse2", "sse2 hypervisor")
ALTRA = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
"""


async def test_this_machine():
    found = await detect(MachineEngines().look)
    told = msgspec.to_builtins(found)
    assert list(told) == [
        *("schema_version", "captured_at", "capture", "architecture", "operating_system", "environment", "cpu"),
        *("memory", "accelerators"),
    ]
    assert told["schema_version"] == 1
    assert told["capture"] == {
        "scope": "inference_host",
        "method": "detected",
        "detector": {"name": "llama-appliance", "version": __version__},
    }
    assert told["architecture"]["raw_name"] == platform.machine()
    assert told["operating_system"]["kernel"]
    assert told["environment"]["kind"] in KINDS
    assert told["cpu"]["logical_thread_count"] == psutil.cpu_count()
    assert 0 < told["memory"]["capacity_bytes"] <= psutil.virtual_memory().total
    assert [accelerator["index"] for accelerator in told["accelerators"]] == list(range(len(found.accelerators)))
    if sys.platform == "linux":
        assert told["operating_system"]["family"] == "linux"
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


async def test_there_is_a_limit_to_looking(caplog: pytest.LogCaptureFixture):
    assert await detect(MachineEngines().look, budget=0) is None
    assert "within 0 s" in caplog.text


@pytest.mark.parametrize(
    ("machine", "name"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("aarch64", "arm64"), ("arm64", "arm64"), ("loongarch64", "other")],
)
def test_architectures(machine: str, name: str):
    assert architecture_of(machine).name == name
    assert architecture_of(machine).raw_name == machine


def test_processors(tmp_path: Path):
    xeon = write(tmp_path / "xeon", {"proc/cpuinfo": XEON})
    assert linux.cpu_names(xeon) == CpuNames("Intel", "Intel(R) Xeon(R) Gold 6430", 2)
    packages = {f"sys/devices/system/cpu/cpu{n}/topology/physical_package_id": f"{n // 2}\n" for n in range(4)}
    altra = write(tmp_path / "altra", {"proc/cpuinfo": ALTRA, **packages})
    assert linux.cpu_names(altra) == CpuNames("ARM", None, 2)
    unknown = {"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1\n"}
    assert linux.cpu_names(write(tmp_path / "board", unknown)) == CpuNames(None, None, None)


KVM = {"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC\n"}
EC2 = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "g6.xlarge\n"}
WSL = {"proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"}
PLACES = [
    ({"proc/cpuinfo": XEON}, {}, ("native", None, None)),
    ({"proc/cpuinfo": XEON, **KVM}, {}, ("native", None, None)),
    ({"proc/cpuinfo": VIRTUAL, **KVM}, {}, ("virtual_machine", "QEMU", None)),
    ({"proc/cpuinfo": VIRTUAL, **EC2}, {}, ("virtual_machine", "Amazon EC2", None)),
    ({"proc/cpuinfo": VIRTUAL}, {}, ("virtual_machine", None, None)),
    ({"proc/cpuinfo": ALTRA}, {}, ("unknown", None, None)),
    ({"proc/cpuinfo": VIRTUAL, **WSL}, {}, ("wsl", "WSL", "2")),
    ({"proc/cpuinfo": VIRTUAL, ".dockerenv": "", **WSL}, {}, ("container", "Docker", None)),
    ({"proc/cpuinfo": XEON, "run/.containerenv": ""}, {}, ("container", "Podman", None)),
    ({"run/systemd/container": "systemd-nspawn\n"}, {}, ("container", "systemd-nspawn", None)),
    ({}, {"container": "lxc"}, ("container", "LXC", None)),
    ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("container", "Kubernetes", None)),
]


@pytest.mark.parametrize(("files", "environ", "expected"), PLACES)
def test_environments(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: tuple[str, str | None, str | None]
):
    kind, name, version = expected
    assert linux.environment(write(tmp_path, files), environ) == Environment(kind=kind, name=name, version=version)


def test_distributions(tmp_path: Path):
    quoted = write(tmp_path / "a", {"etc/os-release": 'NAME="Fedora Linux"\nVERSION_ID=44\nPRETTY_NAME="x"\n'})
    assert (linux.operating_system(quoted).name, linux.operating_system(quoted).version) == ("Fedora Linux", "44")
    rolling = write(tmp_path / "b", {"usr/lib/os-release": "NAME='Arch Linux'\n"})
    assert (linux.operating_system(rolling).name, linux.operating_system(rolling).version) == ("Arch Linux", None)
    assert linux.operating_system(tmp_path / "none").name is None
