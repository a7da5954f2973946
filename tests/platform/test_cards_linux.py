"""Cards in the kernel's files, from trees like those that amdgpu, amdkfd, xe, nvidia and nouveau make."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from appliance.core.engines.machine import normal_pci
from appliance.platform.cards_linux import amd, intel, nvidia_from_files, nvidia_version, problems

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="trees with links like sysfs; Windows has no sysfs")
MIB = 1 << 20


def card(
    root: Path, pci: str, vendor: str, device: str, driver: str = "", *, kind: str = "0x030000", **files: str
) -> Path:
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    for name, text in {"class": kind, "vendor": vendor, "device": device, **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return folder


def node(root: Path, number: int, **facts: int) -> None:
    path = root / f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))


def test_amd_cards_with_their_targets(tmp_path: Path) -> None:
    node(tmp_path, 0, cpu_cores_count=16, simd_count=0, location_id=0, gfx_target_version=0)
    node(tmp_path, 1, cpu_cores_count=0, simd_count=192, location_id=0x0300, domain=0, gfx_target_version=110000)
    node(tmp_path, 2, cpu_cores_count=0, simd_count=416, location_id=0x2100, domain=1, gfx_target_version=90010)
    node(tmp_path, 3, cpu_cores_count=8, simd_count=8, location_id=0x0609, domain=0, gfx_target_version=90012)
    sizes = {"mem_info_vram_total": str(24560 * MIB), "mem_info_vram_used": str(560 * MIB)}
    card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "amdgpu", **sizes, product_name="Radeon RX 7900 XTX")
    card(tmp_path, "0001:21:00.0", "0x1002", "0x740f", "amdgpu", kind="0x120000", unique_id="9a1b")
    card(tmp_path, "0000:06:01.1", "0x1002", "0x15d8", "amdgpu")
    first, apu, instinct = amd(tmp_path)
    assert (first.name, first.pci, first.gfx, first.driver) == (
        "Radeon RX 7900 XTX",
        "0000:03:00.0",
        "gfx1100",
        "amdgpu",
    )
    assert (first.total, first.free, first.integrated) == (24560 * MIB, 24000 * MIB, None)
    assert (apu.name, apu.gfx, apu.integrated, apu.total) == ("AMD GPU 15d8", "gfx90c", True, None)
    assert (instinct.pci, instinct.gfx, instinct.uuid) == ("0001:21:00.0", "gfx90a", "9a1b")


def test_a_sleeping_card_is_not_asked_for_its_memory(tmp_path: Path) -> None:
    sizes = {"mem_info_vram_total": "1000", "power__runtime_status": "suspended"}
    card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "amdgpu", **sizes)
    assert (amd(tmp_path)[0].total, amd(tmp_path)[0].name) == (None, "AMD GPU 744c")


def test_a_module_outside_the_kernels_tree_has_a_version(tmp_path: Path) -> None:
    card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "amdgpu")
    assert amd(tmp_path)[0].driver_version == ""
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.16.13\n")
    assert amd(tmp_path)[0].driver_version == "6.16.13"


def test_intels_own_and_added_cards(tmp_path: Path) -> None:
    card(tmp_path, "0000:00:02.0", "0x8086", "0x7d67", "i915")
    card(tmp_path, "0000:04:00.0", "0x8086", "0xe20b", "xe")
    card(tmp_path, "0000:00:1f.3", "0x8086", "0x7a50", "snd", kind="0x040300")
    assert [(gpu.name, gpu.driver, gpu.integrated) for gpu in intel(tmp_path)] == [
        ("Intel GPU 7d67", "i915", True),
        ("Intel GPU e20b", "xe", False),
    ]


OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)
OLD_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"


@pytest.mark.parametrize(("text", "version"), [(OPEN_MODULE, "560.35.03"), (OLD_MODULE, "470.256.02"), ("?", "")])
def test_nvidias_module(tmp_path: Path, text: str, version: str) -> None:
    path = tmp_path / "proc/driver/nvidia/gpus/0000:0a:00.0/information"
    path.parent.mkdir(parents=True)
    path.write_text(
        "Model: \t\t NVIDIA H100 PCIe\nIRQ:   \t\t 189\nGPU UUID: \t GPU-????????-????\nBus Type: \t PCIe\n"
    )
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert nvidia_version(tmp_path) == version
    (gpu,) = nvidia_from_files(tmp_path)
    assert (gpu.name, gpu.pci, gpu.uuid, gpu.driver_version) == ("NVIDIA H100 PCIe", "0000:0a:00.0", None, version)


def test_problems_name_the_card_and_what_mends_it(tmp_path: Path) -> None:
    card(tmp_path, "0000:01:00.0", "0x10de", "0x2684", "nouveau")
    card(tmp_path, "0000:02:00.0", "0x10de", "0x2684")
    card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "vfio-pci")
    card(tmp_path, "0000:04:00.0", "0x10de", "0x2684", "nvidia")
    card(tmp_path, "0000:05:00.0", "0x1af4", "0x1050")
    first, second, third = problems(tmp_path)
    assert "0000:01:00.0" in first
    assert "nouveau" in first
    assert "install NVIDIA's driver" in first
    assert "0000:02:00.0 has no driver" in second
    assert "set aside for virtual machines" in third


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="nothing is closed to root")
def test_a_closed_kfd_is_a_problem_of_a_user(tmp_path: Path) -> None:
    closed(tmp_path)
    assert "no permission on /dev/kfd" in problems(tmp_path)[0]


def closed(root: Path) -> None:
    (root / "dev").mkdir()
    (root / "dev/kfd").touch(mode=0)


def test_no_files_no_cards(tmp_path: Path) -> None:
    assert (amd(tmp_path), intel(tmp_path), nvidia_from_files(tmp_path), problems(tmp_path)) == ([], [], [], [])


@pytest.mark.parametrize(
    ("text", "place"),
    [("00000000:0A:00.0", "0000:0a:00.0"), ("0001:21:00.1\n", "0001:21:00.1"), ("card0", None), ("", None)],
)
def test_places_on_the_bus(text: str, place: str | None) -> None:
    assert normal_pci(text) == place
