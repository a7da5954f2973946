"""What builds print when they are asked for their devices: real texts of many backends, and any other text."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.sizes import MIB
from appliance.features.engines.core.listing import MAX_DEVICES, DeviceListing, parse_listing

CUDA_LOG = """ggml_cuda_init: found 2 CUDA devices (Total VRAM: 35936 MiB):
  Device 0: NVIDIA GeForce RTX 3080 Ti, compute capability 8.6, VMM: yes, VRAM: 11909 MiB
  Device 1: NVIDIA RTX PRO 4000 Blackwell SFF Edition, compute capability 12.0, VMM: yes, VRAM: 24026 MiB
load_backend: loaded CUDA backend from /usr/lib/x/libggml-cuda.so
"""
CUDA = """0.00.000.617 I srv  llama_server: initializing ...
Available devices:
  CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)
  CUDA1: NVIDIA RTX PRO 4000 Blackwell SFF Edition (24026 MiB, 23795 MiB free)
"""
ROCM_LOG = """ggml_cuda_init: found 1 ROCm devices:
  Device 0: AMD Radeon(TM) Graphics, gfx1151 (0x1151), VMM: no, Wave Size: 32
"""
ROCM = """Available devices:
  ROCm0: AMD Radeon(TM) Graphics (110511 MiB, 110357 MiB free)
"""
VULKAN_LOG = """0.00.026.187 D ggml_vulkan: Found 3 Vulkan devices:
0.00.026.506 D ggml_vulkan: 0 = AMD Radeon RX 6950 XT (RADV NAVI21) (radv) | uma: 0 | fp16: dot2 | bf16: 0 |
0.00.026.507 D ggml_vulkan: 1 = AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO) (radv) | uma: 1 | bf16: 0
0.00.026.508 D ggml_vulkan: 2 = Strange (CPU, 2) (odd) | uma: 0 | fp16: 1 | bf16: 0
0.00.026.546 D ggml_vulkan: Warning: Device type is CPU. This is probably not the device you want.
"""
VULKAN = """Available devices:
  Vulkan0: AMD Radeon RX 6950 XT (RADV NAVI21) (16368 MiB, 1798 MiB free)
  Vulkan1: AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO) (72540 MiB, 71657 MiB free)
  Vulkan2: Strange (CPU, 2) (2048 MiB, 2048 MiB free)
"""
METAL = """Available devices:
  MTL0: Apple M5 Max (110100 MiB, 110099 MiB free)
  BLAS: Accelerate (0 MiB, 0 MiB free)
"""
INTEL_MAC = """Available devices:
  MTL0: AMD Radeon Pro 5500M (8176 MiB, 8175 MiB free)
  BLAS: Accelerate (0 MiB, 0 MiB free)
"""
RPC = """Available devices:
  RPC0: 127.0.0.1:50161 (24105 MiB, 24105 MiB free)
  RPC[10.0.0.7:50052]: RPC[10.0.0.7:50052] (24105 MiB, 24105 MiB free)
"""


def told(listing: DeviceListing) -> list[tuple[str, str, int, int]]:
    assert listing.fault is None
    return [(one.name, one.description, one.total // MIB, one.free // MIB) for one in listing.devices]


def test_cuda_and_rocm_with_what_they_can_compute() -> None:
    cuda, rocm = parse_listing(CUDA, CUDA_LOG), parse_listing(ROCM, ROCM_LOG)
    assert told(cuda) == [
        ("CUDA0", "NVIDIA GeForce RTX 3080 Ti", 11909, 11650),
        ("CUDA1", "NVIDIA RTX PRO 4000 Blackwell SFF Edition", 24026, 23795),
    ]
    assert told(rocm) == [("ROCm0", "AMD Radeon(TM) Graphics", 110511, 110357)]
    assert (cuda.targets, rocm.targets) == ({"CUDA0": "8.6", "CUDA1": "12.0"}, {"ROCm0": "gfx1151"})


def test_vulkan_with_brackets_and_commas_in_names() -> None:
    listing = parse_listing(VULKAN, VULKAN_LOG)
    assert [one[1:3] for one in told(listing)] == [
        ("AMD Radeon RX 6950 XT (RADV NAVI21)", 16368),
        ("AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO)", 72540),
        ("Strange (CPU, 2)", 2048),
    ]
    assert [one.integrated for one in listing.devices] == [False, True, None]
    assert [one.software for one in listing.devices] == [False, False, True]
    assert [one.driver for one in listing.devices] == ["radv", "radv", "odd"]


def test_lavapipe_is_known_by_its_name_alone() -> None:
    (device,) = parse_listing(
        "Available devices:\n  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)\r\n"
    ).devices
    assert (device.description, device.software) == ("llvmpipe (LLVM 15.0.6, 256 bits)", True)


def test_metal_shares_memory_on_apples_processors_alone_and_blas_is_no_device() -> None:
    (apple,) = parse_listing(METAL).devices
    assert (apple.name, apple.description, apple.integrated) == ("MTL0", "Apple M5 Max", True)
    (radeon,) = parse_listing(INTEL_MAC).devices
    assert (radeon.description, radeon.integrated) == ("AMD Radeon Pro 5500M", None)


def test_rpc() -> None:
    assert told(parse_listing(RPC)) == [
        ("RPC0", "127.0.0.1:50161", 24105, 24105),
        ("RPC[10.0.0.7:50052]", "RPC[10.0.0.7:50052]", 24105, 24105),
    ]


@pytest.mark.parametrize(
    "name", ["--model", "-ngl", "CUDA0,CUDA1", "CUDA0\x1b[2J", "a\0b", "CPU", "none", "Auto", "\u202ex", "$(x)", "'"]
)
def test_a_name_that_is_something_else_to_the_engine_or_a_terminal_is_none(name: str) -> None:
    listing = parse_listing(f"Available devices:\n  CUDA0: A (8 MiB, 8 MiB free)\n  {name}: B (8 MiB, 8 MiB free)\n")
    assert listing.devices == ()
    assert listing.fault == "list"
    assert listing.why.isprintable()


def test_what_a_device_is_called_moves_no_cursor() -> None:
    (device,) = parse_listing("Available devices:\n  CUDA0: A\x1b]0;x\x07 \u202e (8 MiB, 8 MiB free)\n").devices
    assert device.description == "A?]0;x? ?"


def test_no_devices_are_no_fault_and_the_log_may_say_why() -> None:
    assert parse_listing("Available devices:\n  (none)\n") == DeviceListing()
    log = "x\nggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n"
    listing = parse_listing("Available devices:\n  (none)\n", log)
    assert listing.fault is None
    assert listing.why.endswith("CUDA driver version is insufficient for CUDA runtime version")
    stamped = parse_listing("Available devices:\n  (none)\n", "0.00.132.996 I ggml_vulkan: No devices found.")
    assert stamped.why == "ggml_vulkan: No devices found."
    assert parse_listing(CUDA, log).why == ""


@pytest.mark.parametrize(
    ("total", "free"),
    [
        ("0", "0"),
        ("8192", "8193"),
        ("8192", "17592186044415"),
        ("1152921504606846976", "1152921504606846976"),
        ("9" * 400, "1"),
        ("-1", "-1"),
        ("8192", "-5"),
    ],
)
def test_absurd_memory_is_a_fault_that_names_the_device(total: str, free: str) -> None:
    listing = parse_listing(f"Available devices:\n  CUDA0: Big ({total} MiB, {free} MiB free)\n")
    assert listing.fault == "memory"
    assert listing.devices == ()
    assert "CUDA0" in listing.why
    assert len(listing.why) < 200


def test_too_many_devices_are_a_fault_and_equal_names_are_one_device() -> None:
    lines = [f"  CUDA{number}: Card (8192 MiB, 8000 MiB free)\n" for number in range(MAX_DEVICES + 1)]
    assert len(parse_listing("Available devices:\n" + "".join(lines[:-1])).devices) == MAX_DEVICES
    assert parse_listing("Available devices:\n" + "".join(lines)).fault == "memory"
    assert len(parse_listing("Available devices:\n" + lines[0] * 100).devices) == 1


@pytest.mark.parametrize("text", ["", "hello", "\x1b[2Jusage: llama-server", "  CUDA0: Card (8192 MiB, 8000 MiB free)"])
def test_what_is_no_list_is_a_fault(text: str) -> None:
    listing = parse_listing(text)
    assert (listing.fault, listing.devices) == ("list", ())
    assert listing.why.isprintable()


LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from((CUDA + CUDA_LOG + VULKAN + VULKAN_LOG + METAL + RPC + ROCM_LOG).splitlines()),
    st.builds(
        lambda name, what, total, free: f"  {name}: {what} ({total} MiB, {free} MiB free)",
        st.text(max_size=10),
        st.text(max_size=20),
        st.integers() | st.text("0123456789٣-", max_size=30),
        st.integers(),
    ),
)
TEXTS = st.lists(LINES, max_size=30).map("\n".join)


@given(TEXTS, TEXTS, st.booleans())
def test_any_text_is_a_list_or_a_fault(output: str, log: str, headed: bool) -> None:
    listing = parse_listing(f"Available devices:\n{output}" if headed else output, log)
    assert len(listing.devices) <= MAX_DEVICES
    assert len({device.name for device in listing.devices}) == len(listing.devices)
    assert all(0 <= device.free <= device.total and device.total > 0 for device in listing.devices)
    assert not (listing.fault and listing.devices)
    assert "\n" not in listing.why
    assert len(listing.why) < 400


@pytest.mark.parametrize(
    "piece", ["(", "  CUDA0: ", "1 MiB, ", "Device 1: , ", "ggml_vulkan: 1 = ( (", "\n", ") | uma: 1 "]
)
def test_long_texts_take_neither_time_nor_memory(piece: str) -> None:
    text = "Available devices:\n" + piece * (250_000 // len(piece))
    tracemalloc.start()
    try:
        listing = parse_listing(text, text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert listing.devices == ()
    assert peak < 6 << 20
