"""NVIDIA GPUs: what the driver's library tells, and what it refuses to."""

from __future__ import annotations

from datetime import UTC, datetime

from fake_nvml import MIB, FakeNvml

from appliance.core.machine import AcceleratorMemory, Driver
from appliance.platform.nvml import open_nvml

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_gpu_that_tells_everything_but_its_fan():
    with open_nvml(FakeNvml()) as nvml:
        gpu, _ = nvml.samples(NOW)
    assert (gpu.timestamp, gpu.id, gpu.name, gpu.uuid) == (NOW, 0, "NVIDIA H200", "GPU-0")
    assert (gpu.temp_c, gpu.vram_temp_c, gpu.gpu_util_pct, gpu.mem_util_pct) == (41, 47, 87, 35)
    assert (gpu.mem_used_mb, gpu.mem_total_mb, gpu.power_draw_w, gpu.fan_speed_pct) == (1024, 143771, 123.5, None)


def test_a_gpu_that_refuses_leaves_gaps_and_one_without_permission_is_left_out():
    with open_nvml(FakeNvml()) as nvml:
        _, gpu = nvml.samples(NOW)
    assert (gpu.name, gpu.temp_c) == ("NVIDIA Quadro K600", 55)
    told = {gpu.vram_temp_c, gpu.gpu_util_pct, gpu.mem_util_pct, gpu.mem_used_mb, gpu.mem_total_mb, gpu.power_draw_w}
    assert told == {None}


def test_an_old_driver_counts_its_own_reserve_as_used():
    with open_nvml(FakeNvml(old_driver=True)) as nvml:
        assert nvml.samples(NOW)[0].mem_used_mb == 1524


def test_accelerators():
    with open_nvml(FakeNvml()) as nvml:
        first, second = nvml.accelerators()
    assert (first.index, first.kind, first.vendor, first.model, first.architecture) == (
        0,
        "gpu",
        "NVIDIA",
        "NVIDIA H200",
        "Hopper",
    )
    assert first.memory == AcceleratorMemory(kind="dedicated", capacity_bytes=143771 * MIB)
    assert first.driver == Driver(name="nvidia", version="590.44")
    assert first.power_limit_watts == 700
    assert (second.architecture, second.power_limit_watts) == (None, None)
    assert second.memory == AcceleratorMemory(kind="unknown", capacity_bytes=None)


def test_gpus_for_the_choice_of_engines():
    with open_nvml(FakeNvml()) as nvml:
        first, second = nvml.gpus()
    assert (first.vendor, first.name, first.driver, first.driver_version) == (
        "NVIDIA",
        "NVIDIA H200",
        "nvidia",
        "590.44",
    )
    assert (first.pci, first.uuid, first.compute) == ("000a:b1:00.0", "GPU-0", "9.0")
    assert (first.total, first.free) == (143771 * MIB, 142000 * MIB)
    assert (second.name, second.pci, second.compute, second.total) == ("NVIDIA Quadro K600", None, None, None)


def test_the_library_is_closed_again_and_a_broken_driver_is_no_gpu():
    library = FakeNvml()
    with open_nvml(library) as nvml:
        assert (library.open, nvml is None) == (1, False)
    assert library.open == 0
    with open_nvml(FakeNvml(refuses_to_start=True)) as nvml:
        assert nvml is None
    with open_nvml(None) as nvml:
        assert nvml is None
