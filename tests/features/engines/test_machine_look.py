"""One look at the machine: this one, made ones, and ones that break."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
import trio
from fake_nvml_library import build
from file_trees import write

from appliance.core.machine_look import MachineLook
from appliance.features.engines.drivers import look
from appliance.platform.children import inherited_env, open_children

linux = pytest.mark.skipif(sys.platform != "linux", reason="libraries and files as Linux has them")
XEON = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold 6430\nflags\t\t: sse2 pni cx16 popcnt ssse3 sse4_1 sse4_2\n"
GIB = 1 << 30


async def see(root: Path | str = "/", seconds: float = 20.0, **env: str) -> MachineLook:
    with trio.fail_after(60):
        async with open_children() as children:
            return await look(children, seconds=seconds, root=str(root), env={**inherited_env(), **env})


async def test_this_machine() -> None:
    seen = await see(CUDA_VISIBLE_DEVICES="-1", NVIDIA_VISIBLE_DEVICES="all")
    assert seen.cpu
    assert seen.system.split()[0] in ("Linux", "macOS", "Windows")
    assert 0 < seen.memory_available <= seen.memory_total <= psutil.virtual_memory().total
    assert 1 <= seen.cores <= (os.cpu_count() or 1)
    assert seen.hidden["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "NVIDIA_VISIBLE_DEVICES" not in seen.hidden  # every container with NVIDIA's cards has it
    assert not [problem for problem in seen.problems if "left out" in problem]
    if sys.platform == "linux":
        assert set(seen.loaders) >= {"vulkan", "cuda", "rocm"}
        assert seen.cpu_level.startswith(("x86-64-v", "armv"))


@linux
@pytest.mark.needs("cc")
async def test_nvidia_cards_through_their_library(tmp_path: Path) -> None:
    write(tmp_path / "root", {"proc/cpuinfo": XEON, "usr/lib/libcuda.so.1": ""})
    build(tmp_path / "lib", at_init='write(1, "{}\\nhello\\n", 9)')  # what it prints is not taken for a look
    seen = await see(tmp_path / "root", LD_LIBRARY_PATH=str(tmp_path / "lib"))
    first, second = seen.gpus
    assert (first.name, first.pci, first.uuid) == ("NVIDIA Fake 1", "0000:01:00.0", "GPU-1")
    assert (first.driver_version, first.compute, first.total, first.free) == ("570.86", "8.9", 8 * GIB, 7 * GIB)
    assert second.pci == "0000:02:00.0"
    assert (seen.cpu, seen.cpu_level, seen.environment) == ("Intel(R) Xeon(R) Gold 6430", "x86-64-v2", "native")
    assert seen.problems == ()


FROM_FILES = {
    "proc/cpuinfo": XEON,
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA GeForce RTX 3090\nGPU UUID: \t GPU-7f\n",
}


@linux
@pytest.mark.needs("cc")
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("abort()", "SIGABRT"),
        ("*(volatile int *)0 = 1", "SIGSEGV"),
        ("exit(5)", "exit status 5"),
        ("for (;;) pause()", "3 s"),
    ],
)
async def test_a_library_that_kills_or_stops_its_process_is_left_out_by_name(
    tmp_path: Path, what: str, words: str
) -> None:
    write(tmp_path / "root", FROM_FILES)
    build(tmp_path / "lib", at_init=what)
    seen = await see(tmp_path / "root", seconds=3.0, LD_LIBRARY_PATH=str(tmp_path / "lib"))
    (problem, no_cuda) = seen.problems
    assert problem.startswith("NVIDIA's driver library (NVML)")
    assert words in problem
    assert "libcuda" in no_cuda
    (card,) = seen.gpus  # the kernel's files still tell of it
    assert (card.name, card.pci, card.uuid) == ("NVIDIA GeForce RTX 3090", "0000:01:00.0", "GPU-7f")
    assert card.driver_version == "550.54.14"
    assert seen.cpu_level == "x86-64-v2"


@linux
@pytest.mark.needs("cc")
async def test_a_driver_that_was_updated_under_its_program(tmp_path: Path) -> None:
    write(tmp_path / "root", {"proc/cpuinfo": XEON})
    build(tmp_path / "lib", at_init="return 18")
    seen = await see(tmp_path / "root", LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert seen.gpus == ()
    (problem,) = seen.problems
    assert "driver/library version mismatch" in problem
    assert "restart the machine" in problem


async def test_a_process_that_cannot_look_at_all_is_a_problem_too() -> None:
    seen = await see(seconds=0.0)
    assert seen.gpus == ()
    assert "within 0 s" in seen.problems[0]
    assert seen.cores >= 1
