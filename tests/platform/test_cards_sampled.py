"""GPUs in `/sys/class/drm`, from trees like those that amdgpu, xe and nvidia make."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.core.machine import AcceleratorMemory, Driver
from appliance.platform.cards_linux import accelerator, find_cards, sample

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RADEON = {
    "vendor": "0x1002",
    "device": "0x744c",
    "product_name": "Radeon RX 7900 XTX",
    "unique_id": "9a1b2c3d4e5f6071",
    "gpu_busy_percent": "63",
    "mem_busy_percent": "21",
    "mem_info_vram_total": str(24560 << 20),
    "mem_info_vram_used": str(5000 << 20),
    "power/runtime_status": "active",
    "hwmon/hwmon3/temp1_label": "edge",
    "hwmon/hwmon3/temp1_input": "52600",
    "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp2_input": "71000",
    "hwmon/hwmon3/temp3_label": "mem",
    "hwmon/hwmon3/temp3_input": "66000",
    "hwmon/hwmon3/power1_average": "211400000",
    "hwmon/hwmon3/power1_cap": "327000000",
    "hwmon/hwmon3/pwm1": "102",
    "hwmon/hwmon3/pwm1_max": "255",
}
ARC = {
    "vendor": "0x8086",
    "device": "0xe20b",
    "hwmon/hwmon1/temp2_label": "pkg",
    "hwmon/hwmon1/temp2_input": "44000",
    "hwmon/hwmon1/temp3_label": "vram",
    "hwmon/hwmon1/temp3_input": "48000",
    "hwmon/hwmon1/energy1_input": "1234567",
}


def make_card(root: Path, name: str, files: dict[str, str]) -> Path:
    device = root / "sys/class/drm" / name / "device"
    for file, text in files.items():
        path = device / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return device


def test_everything_that_amdgpu_tells(tmp_path: Path):
    make_card(tmp_path, "card1", RADEON)
    (card,) = find_cards(tmp_path)
    gpu = sample(card, 4, NOW)
    assert (gpu.timestamp, gpu.id, gpu.name, gpu.uuid) == (NOW, 4, "Radeon RX 7900 XTX", "9a1b2c3d4e5f6071")
    assert (gpu.temp_c, gpu.vram_temp_c, gpu.gpu_util_pct, gpu.mem_util_pct) == (53, 66, 63, 21)
    assert (gpu.mem_used_mb, gpu.mem_total_mb) == (5000, 24560)
    assert (gpu.fan_speed_pct, gpu.power_draw_w) == (40.0, 211.4)


def test_values_are_read_anew_each_time(tmp_path: Path):
    device = make_card(tmp_path, "card1", RADEON)
    (card,) = find_cards(tmp_path)
    (device / "gpu_busy_percent").write_text("7\n")
    (device / "hwmon/hwmon3/power1_average").unlink()
    (device / "hwmon/hwmon3/power1_input").write_text("9000000\n")
    (device / "hwmon/hwmon3/temp1_input").write_text("not a number\n")
    gpu = sample(card, 0, NOW)
    assert (gpu.gpu_util_pct, gpu.power_draw_w, gpu.temp_c) == (7, 9.0, None)


def test_a_sleeping_gpu_is_not_asked(tmp_path: Path):
    device = make_card(tmp_path, "card0", RADEON)
    (card,) = find_cards(tmp_path)
    (device / "power/runtime_status").write_text("suspended\n")
    gpu = sample(card, 0, NOW)
    assert gpu.name == "Radeon RX 7900 XTX"
    assert (gpu.temp_c, gpu.gpu_util_pct, gpu.mem_used_mb, gpu.power_draw_w) == (None, None, None, None)


def test_which_entries_are_gpus_and_their_order(tmp_path: Path):
    make_card(tmp_path, "card10", ARC)
    make_card(tmp_path, "card2", RADEON)
    make_card(tmp_path, "card0", {"vendor": "0x10de", "device": "0x2684"})
    make_card(tmp_path, "card3", {"vendor": "0x1af4"})
    make_card(tmp_path, "card2-DP-1", RADEON)
    make_card(tmp_path, "renderD128", RADEON)
    (tmp_path / "sys/class/drm/version").write_text("drm 1.1.0\n")
    assert [card.name for card in find_cards(tmp_path)] == ["Radeon RX 7900 XTX", "Intel GPU e20b"]


def test_an_intel_gpu_tells_its_temperatures_and_nothing_is_made_up(tmp_path: Path):
    make_card(tmp_path, "card0", ARC)
    (card,) = find_cards(tmp_path)
    gpu = sample(card, 0, NOW)
    assert (gpu.temp_c, gpu.vram_temp_c) == (44, 48)
    assert {gpu.gpu_util_pct, gpu.mem_total_mb, gpu.mem_used_mb, gpu.power_draw_w, gpu.fan_speed_pct, gpu.uuid} == {
        None
    }
    found = accelerator(card, 0, tmp_path)
    assert (found.vendor, found.model, found.driver) == ("Intel", None, None)
    assert found.memory == AcceleratorMemory(kind="unknown", capacity_bytes=None)


@pytest.mark.skipif(sys.platform == "win32", reason="a tree with links like sysfs; Windows has no sysfs")
def test_accelerator(tmp_path: Path):
    device = make_card(tmp_path, "card1", RADEON)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.16.13\n")
    (device / "driver").symlink_to("../../../../bus/pci/drivers/amdgpu")
    found = accelerator(find_cards(tmp_path)[0], 1, tmp_path)
    assert (found.index, found.kind, found.vendor, found.model) == (1, "gpu", "AMD", "Radeon RX 7900 XTX")
    assert found.memory == AcceleratorMemory(kind="dedicated", capacity_bytes=24560 << 20)
    assert found.driver == Driver(name="amdgpu", version="6.16.13")
    assert found.power_limit_watts == 327


def test_no_sysfs_no_gpu(tmp_path: Path):
    assert find_cards(tmp_path) == []
