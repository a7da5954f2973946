"""Sleep, told by two clocks; drivers and cards, told by a word."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from appliance.platform.machine import SLEPT, Suspends, here

linux = pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux'")


class Clocks:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.running = self.always = 1000.0

    def work(self, seconds: float) -> None:
        self.running += seconds
        self.always += seconds

    def sleep(self, seconds: float) -> None:
        self.always += seconds


def test_sleep_is_told_once() -> None:
    clocks = Clocks()
    suspends = Suspends(lambda: clocks.running, lambda: clocks.always)
    clocks.work(3600)
    assert not suspends.happened()
    clocks.sleep(SLEPT + 1)
    clocks.work(30)
    assert suspends.happened()
    assert not suspends.happened()
    clocks.sleep(SLEPT / 2)  # a clock that was set right
    assert not suspends.happened()
    clocks.sleep(-3600)
    assert not suspends.happened()
    clocks.sleep(60)
    assert suspends.happened()


def test_the_real_clocks_agree_while_the_machine_is_awake() -> None:
    suspends = Suspends()
    begun, always = here.without_sleep(), here.with_sleep()
    time.sleep(0.05)
    assert 0.04 < here.without_sleep() - begun < 5
    assert here.with_sleep() > always
    assert not suspends.happened()


@linux
def test_the_word_changes_with_drivers_and_cards_and_stays_otherwise(tmp_path: Path) -> None:
    seen = [here.signature(tmp_path)]

    def assert_new() -> None:
        now = here.signature(tmp_path)
        assert now not in seen
        assert now == here.signature(tmp_path)
        seen.append(now)

    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\n")
    assert_new()
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03\n")
    assert_new()
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libcuda.so.1").touch()  # the container was started again, with the card
    assert_new()
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert_new()
    (tmp_path / "sys/class/drm/card0").mkdir(parents=True)
    assert_new()
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert_new()
    icd = tmp_path / "usr/share/vulkan/icd.d/radeon_icd.json"
    icd.parent.mkdir(parents=True)
    icd.write_text("{}")
    assert_new()
    icd.write_text("{ }")
    assert_new()
    (tmp_path / "sys/class/drm/card0").rmdir()
    assert_new()


@linux
def test_asking_costs_less_than_a_millisecond() -> None:
    here.signature()
    best = 1.0
    for _ in range(20):
        begun = time.perf_counter()
        here.signature()
        best = min(best, time.perf_counter() - begun)
    assert best < 0.001
