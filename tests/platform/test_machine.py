"""The abilities of a machine, its libraries, and when they change: from its files, and by its clocks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from file_trees import write

from appliance.core.machine_look import arm_level, x86_level
from appliance.platform import machine_linux
from appliance.platform.libraries import find_library, loaders, vulkan_drivers
from appliance.platform.machine import SLEPT, Suspends, here

linux = pytest.mark.skipif(sys.platform != "linux", reason="libraries and files as Linux has them")
V2 = "sse2 pni cx16 popcnt ssse3 sse4_1 sse4_2"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V4, "x86-64-v4"),
        (V3, "x86-64-v3"),
        (V3.replace("fma", "f"), "x86-64-v2"),
        (V4.replace("avx2", ""), "x86-64-v2"),
        ("sse2 ssse3", "x86-64-v1"),
        ("", ""),
    ],
)
def test_levels_of_x86(flags: str, level: str) -> None:
    assert x86_level(flags.split()) == level


@linux
def test_levels_from_files(tmp_path: Path) -> None:
    x86 = write(tmp_path / "a", {"proc/cpuinfo": f"flags\t\t: {V3} avx_vnni\n\nprocessor: 1\nflags: sse2"})
    level, features = machine_linux.cpu_level(x86)
    assert level == "x86-64-v3"
    assert set(features) >= {"sse3", "avx2", "avx_vnni"}
    arm = write(tmp_path / "b", {"proc/cpuinfo": "Features\t: fp asimd asimddp asimdhp i8mm bf16 sve"})
    assert machine_linux.cpu_level(arm) == ("armv8.6-a", ("neon", "dotprod", "fp16", "i8mm", "bf16", "sve"))
    assert machine_linux.cpu_level(write(tmp_path / "c", {"proc/cpuinfo": "isa: rv64gc"})) == ("", ())
    levels = {
        "neon": "armv8-a", "dotprod": "armv8.2-a", "i8mm": "armv8.6-a", "bf16": "armv8.6-a", "sve2": "armv9-a",
        "sme": "armv9-a",
    }  # fmt: skip
    assert {word: arm_level([word]) for word in levels} == levels
    assert arm_level(levels) == "armv9-a"


@linux
def test_libraries_are_found_where_the_linker_looks(tmp_path: Path) -> None:
    names = ("libcuda.so.1", "libother.so")
    assert find_library(names, tmp_path, {}) == ""
    unreadable = "etc/ld.so.conf.d/a.conf/x"  # what lies there is a folder
    write(tmp_path, {unreadable: "", "etc/ld.so.conf.d/x.conf": "# here\n/opt/lib", "opt/lib/libother.so": ""})
    assert find_library(names, tmp_path, {}) == str(tmp_path / "opt/lib/libother.so")
    write(tmp_path, {"usr/lib/wsl/lib/libcuda.so.1": ""})
    assert find_library(names, tmp_path, {}) == str(tmp_path / "usr/lib/wsl/lib/libcuda.so.1")
    write(tmp_path, {"mine/libcuda.so.1": ""})
    assert find_library(names, tmp_path, {"LD_LIBRARY_PATH": f":{tmp_path}/mine"}) == str(
        tmp_path / "mine/libcuda.so.1"
    )


def icd(library: str) -> str:
    return f'{{"ICD": {{"library_path": "{library}", "api_version": "1.3.230"}}, "file_format_version": "1.0.0"}}'


@linux
def test_vulkan_drivers_and_their_versions(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "usr/share/vulkan/icd.d/lvp_icd.x86_64.json": icd("/usr/lib/libvulkan_lvp.so"),
            "usr/lib/libvulkan_lvp.so": "\0\0Mesa 22.3.6 (LLVM 15)\0",
            "etc/vulkan/icd.d/nvidia_icd.json": icd("libGLX_nvidia.so.0"),
            "usr/lib64/libGLX_nvidia.so.0": "x\n",
            "usr/share/vulkan/icd.d/radeon_icd.x86_64.json": icd("../lost.so"),
            "usr/share/vulkan/icd.d/broken.json": '{"ICD": {}}',
            "usr/share/vulkan/icd.d/kaput_icd.json": "\0{",
        },
    )
    assert dict(vulkan_drivers(tmp_path, {})) == {
        "lvp": "Mesa 22.3.6",
        "nvidia": "1.3.230, 2 bytes",
        "radeon": "../lost.so is missing",
    }
    only = {"VK_DRIVER_FILES": str(tmp_path / "usr/share/vulkan/icd.d/lvp_icd.x86_64.json")}
    found = loaders(tmp_path, only)
    assert [name for name in found if "/" in name] == ["vulkan/lvp"]
    assert (found["vulkan"], found["cuda"]) == ("", "")


@linux
@pytest.mark.parametrize(
    ("mounts", "is_there"),
    [
        ("/dev/sda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid 0 0", True),
        ("tmpfs /run tmpfs rw 0 0\n/dev/sda1 /dev/shm ext4 rw 0 0", False),
        ("", False),
    ],
)
def test_files_lie_in_memory_where_a_file_system_in_memory_is_mounted(
    tmp_path: Path, mounts: str, is_there: bool
) -> None:
    folder = write(tmp_path, {"proc/self/mounts": mounts, "dev/shm/x": ""}) / "dev/shm"
    assert machine_linux.memory_folder(tmp_path) == (folder if is_there else None)
    folder.rename(tmp_path / "gone")
    assert machine_linux.memory_folder(tmp_path) is None


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
    (tmp_path / "sys/module/amdgpu/version").write_text("6.10\n")
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
