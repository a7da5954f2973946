"""Cards in the kernel's files, from trees like those that amdgpu, amdkfd, xe, nvidia and nouveau make."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from file_trees import card

from appliance.core.machine import GpuSample
from appliance.core.machine_look import normal_pci
from appliance.platform.cards_linux import amd, intel, nvidia_from_files, nvidia_version, problems, sample, sampled

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="trees with links like sysfs; Windows has no sysfs")
MIB = 1 << 20
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RADEON = {
    "product_name": "Radeon RX 7900 XTX",
    "unique_id": "9a1b2c3d4e5f6071",
    "gpu_busy_percent": "63",
    "mem_busy_percent": "21",
    "mem_info_vram_total": str(24560 * MIB),
    "mem_info_vram_used": str(5000 * MIB),
    "power__runtime_status": "active",
    "hwmon__hwmon3__temp1_label": "edge",
    "hwmon__hwmon3__temp1_input": "52600",
    "hwmon__hwmon3__temp2_label": "junction",
    "hwmon__hwmon3__temp2_input": "71000",
    "hwmon__hwmon3__temp3_label": "mem",
    "hwmon__hwmon3__temp3_input": "66000",
    "hwmon__hwmon3__power1_average": "211400000",
    "hwmon__hwmon3__power1_cap": "327000000",
    "hwmon__hwmon3__pwm1": "102",
    "hwmon__hwmon3__pwm1_max": "255",
}


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
    known = ("Radeon RX 7900 XTX", "0000:03:00.0", "gfx1100", "amdgpu")
    assert (first.name, first.pci, first.gfx, first.driver) == known
    assert (first.total, first.free, first.integrated) == (24560 * MIB, 24000 * MIB, None)
    assert (apu.name, apu.gfx, apu.integrated, apu.total) == ("AMD GPU 15d8", "gfx90c", True, None)
    assert (instinct.pci, instinct.gfx, instinct.uuid) == ("0001:21:00.0", "gfx90a", "9a1b")


def test_a_sleeping_card_is_not_asked(tmp_path: Path) -> None:
    card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "amdgpu", **RADEON | {"power__runtime_status": "suspended"})
    (gpu,), (slot,) = amd(tmp_path), sampled(tmp_path)
    assert (gpu.name, gpu.total, gpu.power_limit) == ("Radeon RX 7900 XTX", None, None)
    assert sample(slot, 4, NOW) == GpuSample(timestamp=NOW, id=4, name=gpu.name, uuid=gpu.uuid)


def test_everything_that_amdgpu_measures_is_read_anew_each_time(tmp_path: Path) -> None:
    folder = card(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "amdgpu", **RADEON)
    assert amd(tmp_path)[0].power_limit == 327
    (slot,) = sampled(tmp_path)
    gpu = sample(slot, 4, NOW)
    assert (gpu.timestamp, gpu.id, gpu.name, gpu.uuid) == (NOW, 4, "Radeon RX 7900 XTX", "9a1b2c3d4e5f6071")
    assert (gpu.temp_c, gpu.vram_temp_c, gpu.gpu_util_pct, gpu.mem_util_pct) == (53, 66, 63, 21)
    assert (gpu.mem_used_mb, gpu.mem_total_mb) == (5000, 24560)
    assert (gpu.fan_speed_pct, gpu.power_draw_w) == (40.0, 211.4)
    (folder / "gpu_busy_percent").write_text("7\n")
    (folder / "hwmon/hwmon3/power1_average").unlink()
    (folder / "hwmon/hwmon3/power1_input").write_text("9000000\n")
    (folder / "hwmon/hwmon3/temp1_input").write_text("not a number\n")
    gpu = sample(slot, 0, NOW)
    assert (gpu.gpu_util_pct, gpu.power_draw_w, gpu.temp_c) == (7, 9.0, None)


def test_an_intel_card_tells_its_temperatures_and_nothing_is_made_up(tmp_path: Path) -> None:
    files = {"temp2_label": "pkg", "temp2_input": "44000", "temp3_label": "vram", "temp3_input": "48000"}
    sensors = {f"hwmon__hwmon1__{name}": text for name, text in files.items()}
    card(tmp_path, "0000:02:00.0", "0x10de", "0x2684", "nvidia")
    card(tmp_path, "0000:04:00.0", "0x8086", "0xe20b", "xe", **sensors)
    card(tmp_path, "0000:05:00.0", "0x1002", "0x744c", "amdgpu", **RADEON)
    card(tmp_path, "0000:06:00.0", "0x1002", "0x744c")
    radeon, arc = sampled(tmp_path)
    assert radeon.pci == "0000:05:00.0", "those that have a driver, in the order of a look"
    told = GpuSample(timestamp=NOW, id=1, name="Intel GPU e20b", uuid=None, temp_c=44, vram_temp_c=48)
    assert sample(arc, 1, NOW) == told


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
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch(mode=0)
    assert "no permission on /dev/kfd" in problems(tmp_path)[0]


def test_no_files_no_cards(tmp_path: Path) -> None:
    assert [look(tmp_path) for look in (amd, intel, nvidia_from_files, problems, sampled)] == [[]] * 5


@pytest.mark.parametrize(
    ("text", "place"),
    [("00000000:0A:00.0", "0000:0a:00.0"), ("0001:21:00.1\n", "0001:21:00.1"), ("card0", None), ("", None)],
)
def test_places_on_the_bus(text: str, place: str | None) -> None:
    assert normal_pci(text) == place
