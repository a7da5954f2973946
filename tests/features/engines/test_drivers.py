"""NVIDIA's driver asked through a process of its own: a real process, and a library made for the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import trio
from fake_nvml_library import build
from trio.testing import wait_all_tasks_blocked
from waiting import until

from appliance.core.machine import AcceleratorMemory, Driver
from appliance.features.engines import drivers as module
from appliance.features.engines.drivers import open_gpus
from appliance.features.engines.source import MachineEngines
from appliance.features.metrics.hardware import detect
from appliance.features.metrics.samples import open_samples
from appliance.platform.gpus import Gpus, NoGpus, process_memory

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="libraries as Linux has them"),
    pytest.mark.needs("cc"),
]
Library = Callable[..., None]
GIB = 1 << 30


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Make the driver's library that this process and its children find."""

    def make(*, at_init: str = "", at_work: str = "") -> None:
        build(tmp_path / "lib", at_init=at_init, at_work=at_work)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))

    return make


def mapped() -> str:
    return Path("/proc/self/maps").read_text("utf-8")


def started() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "driver_process" in " ".join(child.cmdline())]


async def test_samples_come_from_another_process(library: Library):
    library()
    with trio.fail_after(30):
        async with open_gpus() as gpus, open_samples(gpus, 0.05) as samples:
            await until(lambda: len([gpu for gpu in samples.since().gpu_stats or () if gpu.id == 1]) >= 3)
            (process,) = started()
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    told = samples.since()
    assert [gpu.id for gpu in (told.gpu_stats or ())[:2]] == [0, 1]
    first, second, *_ = list(told.gpu_stats or ())
    assert (first.name, first.uuid, first.mem_total_mb, first.mem_used_mb) == ("NVIDIA Fake 1", "GPU-1", 8192, 1024)
    assert (first.temp_c, first.vram_temp_c, first.power_draw_w, first.fan_speed_pct) == (41, 47, 123.5, None)
    assert (first.mem_util_pct, second.mem_util_pct) == (7, 7)
    assert second.mem_used_mb == 2048, "an old driver counts its own reserve as used"
    assert (second.name, second.temp_c, second.vram_temp_c, second.power_draw_w) == ("NVIDIA Fake 2", None, None, None)
    assert [gpu.gpu_util_pct for gpu in told.gpu_stats or ()][:4] == [40, 41, 42, 43]
    assert {gpu.timestamp for gpu in told.gpu_stats or ()} <= {system.timestamp for system in told.sys_stats}
    assert "nvidia-ml" not in mapped()


async def test_what_processes_have_there_is_told_where_the_driver_is_asked(library: Library):
    library()
    with trio.fail_after(30):
        async with open_gpus() as gpus:
            assert started() == []
            assert await gpus.processes(0) == [(os.getpid(), 3 * GIB)]
            taken = await process_memory(os.getpid(), ("ram", "gpu0", "gpu7", "vulkan"), gpus)
    assert taken["gpu0"] == 3 * GIB
    assert taken["ram"] > 1 << 20
    assert set(taken) == {"ram", "gpu0"}
    assert set(await process_memory(os.getpid(), ("ram", "gpu0"), NoGpus())) == {"ram"}


async def test_hardware(library: Library):
    library()
    found = await detect(MachineEngines().look)
    assert [card.model for card in found.accelerators][:2] == ["NVIDIA Fake 1", "NVIDIA Fake 2"]
    first, second = found.accelerators[:2]
    assert (first.kind, first.vendor, first.architecture, first.power_limit_watts) == ("gpu", "NVIDIA", "Hopper", 700)
    assert first.memory == AcceleratorMemory(kind="dedicated", capacity_bytes=8 * GIB)
    assert first.driver == Driver(name="nvidia", version="570.86")
    assert (second.architecture, second.power_limit_watts) == (None, None)
    assert [card.index for card in found.accelerators] == list(range(len(found.accelerators)))
    assert "nvidia-ml" not in mapped()


@pytest.mark.parametrize(
    ("what", "words"),
    [("abort()", "SIGABRT"), ("return 9", "Driver Not Loaded"), ("for (;;) pause()", "no answer within")],
)
async def test_a_library_that_does_not_work_costs_its_process_alone(
    library: Library, what: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "PATIENCE", 1.0 if "pause" in what else 20.0)
    library(at_init=what)
    with trio.fail_after(30):
        async with open_gpus() as gpus, open_samples(gpus, 0.05) as samples:
            await until(lambda: len(samples.since().sys_stats) >= 3)
            assert started() == []
    assert samples.since().gpu_stats is None
    (warning,) = [record.message for record in caplog.records if record.name == module.__name__]
    assert words in warning
    assert "asked again in 5 s" in warning


async def test_it_is_started_again_after_a_while_each_time_a_longer_one(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "AGAIN", (0.5, 3.0))
    library(at_work="if (asked == 2) abort()")
    with trio.fail_after(30):
        async with open_gpus() as gpus:
            assert len(await gpus.samples()) == 2
            (first,) = started()
            assert await gpus.samples() == []
            assert started() == []
            assert await gpus.samples() == []
            await until(gpus.samples, lambda found: len(found) == 2)
            (second,) = started()
            assert second.pid != first.pid


async def test_leaving_while_an_answer_is_awaited(library: Library):
    library(at_work="if (asked == 2) for (;;) pause()")
    with trio.fail_after(10):
        async with trio.open_nursery() as outside, open_gpus() as gpus:
            answers: list[object] = []

            async def ask(gpus: Gpus) -> None:
                answers.append(await gpus.samples())

            assert len(await gpus.samples()) == 2
            outside.start_soon(ask, gpus)
            await wait_all_tasks_blocked()
    assert answers == [[]]
    assert started() == []


async def test_without_a_library_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if module.has_nvml():
        pytest.skip("there is a real driver here")
    async with open_gpus() as gpus:
        assert await gpus.samples() == []
        assert await gpus.processes(0) is None
        assert started() == []
