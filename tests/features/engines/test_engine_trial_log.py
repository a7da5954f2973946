"""What kind of failure it was: with lines of real engines."""

from __future__ import annotations

import pytest
from engine_logs import KERNEL, LOST, NO_LIBRARY, NO_MODEL, NO_ROOM

from appliance.features.engines.core.listing import Fault
from appliance.features.engines.core.trials import (
    fault_of_death,
    fault_of_start,
    lost_its_port,
    only_on_processor,
    pci_of,
)

VULKAN_ROOM = (
    "ggml_vulkan: Device memory allocation of size 1 failed.\nvk::Device::allocateMemory: ErrorOutOfDeviceMemory"
)
ON_CARD = """
0.00.069.018 I llama_prepare_model_devices: using device CUDA0 (NVIDIA H100 (80 GB)) (0000:0A:00.0) - 80000 MiB free
0.00.069.019 I llama_prepare_model_devices: using device CUDA1 (NVIDIA H100) (0000:0b:00.0) - 80000 MiB free
0.00.101.000 I load_tensors:   CPU_Mapped model buffer size =     0.28 MiB
0.00.102.000 I load_tensors:        CUDA0 model buffer size =    48.31 MiB
"""
ON_PROCESSOR = """
0.00.069.018 I using device Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) (unknown id) - 2048 MiB free
0.00.101.000 I load_tensors:   CPU_Mapped model buffer size =   229.19 MiB
0.00.101.100 I load_tensors:   CPU_REPACK model buffer size =     1.00 MiB
"""


@pytest.mark.parametrize(
    ("log", "status", "executed", "fault"),
    [
        (NO_MODEL, "exit status 1", True, "load"),
        (NO_LIBRARY, "exit status 127", False, "missing"),
        ("", "0xC0000135: a DLL it needs is missing", True, "missing"),
        (NO_ROOM, "exit status 1", True, "memory"),
        (VULKAN_ROOM, "killed by SIGABRT", True, "memory"),
        ("", "killed by SIGKILL (out of memory?)", True, "memory"),
        ("exec: Exec format error", "exit status 126", False, "damaged"),
        ("", "killed by SIGSEGV", True, "load"),
    ],
)
def test_what_kind_of_failure_a_start_was(log: str, status: str, executed: bool, fault: Fault) -> None:
    assert fault_of_start(status, executed, log.splitlines()) == fault


def test_what_kind_of_failure_a_death_was() -> None:
    assert fault_of_death(KERNEL.splitlines()) == "crash"
    assert fault_of_death(LOST.splitlines()) == "crash"
    assert fault_of_death(NO_ROOM.splitlines()) == "memory"


def test_the_place_of_the_card_that_it_uses() -> None:
    lines = ON_CARD.splitlines()
    assert pci_of("CUDA0", lines) == "0000:0a:00.0"
    assert pci_of("CUDA1", lines) == "0000:0b:00.0"
    assert pci_of("CUDA2", lines) is None
    assert pci_of("Vulkan0", ON_PROCESSOR.splitlines()) is None


def test_a_device_that_got_no_weights_was_not_used() -> None:
    assert only_on_processor(ON_PROCESSOR.splitlines())
    assert not only_on_processor(ON_CARD.splitlines())
    assert not only_on_processor(NO_MODEL.splitlines()), "nothing was told"


def test_a_port_that_somebody_else_took() -> None:
    assert lost_its_port(["0.00 E srv: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1"])
    assert not lost_its_port(NO_MODEL.splitlines())
