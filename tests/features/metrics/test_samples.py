"""Samples of the machine that the tests run on, and memory of this process that goes back to it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import msgspec
import psutil
import pytest
import trio
from waiting import until

from appliance.core.machine import GpuSample, Sample, SystemSample
from appliance.core.sizes import MIB
from appliance.features.metrics.samples import Samples, open_samples
from appliance.platform.gpus import NoGpus
from appliance.platform.sampler import MAX_INTERFACES, new_sampler

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def made(second: int, *gpus: int) -> Sample:
    now = START + timedelta(seconds=second)
    system = SystemSample(
        timestamp=now,
        cpu_util_per_core=(1.0,),
        mem_total_mb=2,
        mem_used_mb=1,
        mem_free_mb=1,
        swap_total_mb=0,
        swap_used_mb=0,
        load_avg_1=None,
        load_avg_5=None,
        load_avg_15=None,
        net_io=(),
    )
    return Sample(system=system, gpus=tuple(GpuSample(timestamp=now, id=gpu, name="g") for gpu in gpus))


def test_a_sample_agrees_with_the_system():
    sampler = new_sampler()
    time.sleep(0.05)
    system = sampler.take(START).system
    assert system.timestamp == START
    assert len(system.cpu_util_per_core) == psutil.cpu_count()
    assert all(0 <= percent <= 100 for percent in system.cpu_util_per_core)
    assert system.mem_total_mb == psutil.virtual_memory().total // MIB
    assert 0 < system.mem_used_mb < system.mem_total_mb
    assert 0 <= system.mem_free_mb < system.mem_total_mb
    assert system.swap_total_mb == psutil.swap_memory().total // MIB
    assert (system.load_avg_1 is None) == (os.name == "nt")
    loads = system.load_avg_1, system.load_avg_5, system.load_avg_15
    assert all(load is None or load == round(load, 2) for load in loads)
    names = [io.name for io in system.net_io]
    assert names == sorted(names)
    assert 0 < len(names) <= MAX_INTERFACES
    assert set(names) <= set(psutil.net_io_counters(pernic=True))


def test_a_busy_processor_shows():
    sampler = new_sampler()
    until = time.process_time() + 0.4
    while time.process_time() < until:
        sum(range(1000))
    busy = sampler.take(START).system
    assert sum(busy.cpu_util_per_core) > 20


def test_a_sample_costs_little():
    sampler = new_sampler()
    before = time.process_time()
    for _ in range(20):
        sampler.take(START)
    assert (time.process_time() - before) / 20 < 0.02


def test_the_json_has_the_names_that_llama_swap_has():
    sample = msgspec.to_builtins(made(0, 0))
    assert set(sample["system"]) == {
        "timestamp",
        *("cpu_util_per_core", "mem_total_mb", "mem_used_mb", "mem_free_mb", "swap_total_mb", "swap_used_mb"),
        *("load_avg_1", "load_avg_5", "load_avg_15", "net_io"),
    }
    assert set(sample["gpus"][0]) == {
        *("timestamp", "id", "name", "uuid", "temp_c", "vram_temp_c", "gpu_util_pct", "mem_util_pct"),
        *("mem_used_mb", "mem_total_mb", "fan_speed_pct", "power_draw_w"),
    }
    assert b'"timestamp":"2026-01-02T03:04:05Z"' in msgspec.json.encode(made(0))


def test_an_hour_is_kept():
    samples = Samples(1200)
    for minute in range(0, 200, 20):
        samples.add(made(minute * 60))
    kept = [(sample.timestamp - START).seconds // 60 for sample in samples.since().sys_stats]
    assert kept == [140, 160, 180]


def test_since_tells_what_is_newer():
    samples = Samples(5)
    for second in (0, 5, 10):
        samples.add(made(second, 0, 1))
    newer = samples.since(START + timedelta(seconds=5))
    assert [sample.timestamp.second for sample in newer.sys_stats] == [15]
    assert [(gpu.timestamp.second, gpu.id) for gpu in newer.gpu_stats or ()] == [(15, 0), (15, 1)]
    other_zone = (START + timedelta(seconds=5)).astimezone()
    assert samples.since(other_zone) == newer
    nothing = samples.since(START + timedelta(seconds=10))
    assert msgspec.json.encode(nothing) == b'{"enabled":true,"sys_stats":[],"gpu_stats":null}'


async def test_samples_arrive_while_the_block_is_open():
    begun = datetime.now(UTC)
    with trio.fail_after(20):
        async with open_samples(NoGpus(), 0.05) as samples:
            assert samples.enabled
            await until(lambda: len(samples.since().sys_stats) >= 3)
        ended = datetime.now(UTC)
    taken = [sample.timestamp for sample in samples.since().sys_stats]
    assert taken == sorted(set(taken))
    assert begun < taken[0]
    assert taken[-1] < ended
    assert samples.latest.system == samples.since().sys_stats[-1]
    count = len(taken)
    await trio.sleep(0.15)
    assert len(samples.since().sys_stats) == count


FREED = """
from appliance.platform.machine import give_back_memory, own_bytes
blocks = [bytes(4096) for _ in range(20_000)]
kept = blocks[::50]
del blocks
before = own_bytes()
give_back_memory()
print((before - own_bytes()) >> 20)
"""

LATER = """
import trio
from appliance import upkeep
from appliance.platform.machine import own_bytes

async def main():
    upkeep.LOOK_AT_MEMORY = 0.1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upkeep.keep_small)
        await trio.sleep(0.05)
        blocks = [bytes(4096) for _ in range(20_000)]
        kept = blocks[::50]
        await trio.sleep(1)  # they are looked at while all of them are in use
        del blocks
        before = own_bytes()
        with trio.move_on_after(10):
            while (before - own_bytes()) >> 20 < 50:
                await trio.sleep(0.05)
        print((before - own_bytes()) >> 20)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give back by themselves")
@pytest.mark.parametrize("script", [FREED, LATER], ids=["freed", "freed after a look"])
def test_what_lies_between_things_in_use_is_given_back(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 40, "MiB of the 78 that were freed"
