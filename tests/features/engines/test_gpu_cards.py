"""Which card is behind what an engine lists, on machines as people have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.sizes import MIB
from appliance.features.engines.core.listing import Device, drivers_of, identify, parse_listing


def look(*gpus: Gpu, **more: dict[str, str]) -> MachineLook:
    seen = MachineLook(platform="linux-x64", system="Linux 6.1", environment="native", cpu="AMD Ryzen", gpus=gpus)
    return structs.replace(seen, **more)


def nvidia(name: str, pci: str, mib: int, uuid: str = "", version: str = "570.86") -> Gpu:
    return Gpu(
        vendor="NVIDIA",
        name=f"NVIDIA {name}",
        driver="nvidia",
        driver_version=version,
        pci=pci,
        uuid=uuid or f"GPU-{pci}",
        total=mib * MIB,
        compute="8.6",
    )


def amd(name: str, pci: str, mib: int, gfx: str | None = None, *, integrated: bool | None = None) -> Gpu:
    return Gpu(vendor="AMD", name=name, driver="amdgpu", pci=pci, total=mib * MIB, gfx=gfx, integrated=integrated)


def intel(number: str, pci: str, *, integrated: bool) -> Gpu:
    return Gpu(vendor="Intel", name=f"Intel GPU {number}", driver="xe", pci=pci, integrated=integrated)


def devices(*lines: str, log: str = "") -> tuple[Device, ...]:
    listing = parse_listing("Available devices:\n" + "".join(f"  {line}\n" for line in lines), log)
    assert listing.fault is None
    return listing.devices


TI, BIG = nvidia("GeForce RTX 5060 Ti", "0000:01:00.0", 16311), nvidia("GeForce RTX 5080", "0000:02:00.0", 16303)
RADEON = amd("Radeon RX 7900 XTX", "0000:03:00.0", 24560, "gfx1100")
LAVAPIPE = "Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)"


PLAIN, LONGER = (
    nvidia("GeForce RTX 3080", "0000:01:00.0", 10240),
    nvidia("GeForce RTX 3080 Ti", "0000:02:00.0", 12288),
)
P40 = [nvidia("Tesla P40", f"0000:0{at}:00.0", 24576) for at in (5, 6, 7)]
RTX = nvidia("GeForce RTX 3090", "0000:04:00.0", 24576)
FOUR = (
    "CUDA0: NVIDIA GeForce RTX 3090 (24154 MiB, 406 MiB free)",
    "CUDA1: Tesla P40 (24438 MiB, 22942 MiB free)",
    "CUDA2: Tesla P40 (24438 MiB, 24144 MiB free)",
    "CUDA3: Tesla P40 (24438 MiB, 24144 MiB free)",
)
H100 = nvidia("H100 80GB HBM3", "0000:0a:00.0", 81559)
UNNAMED, APU = amd("AMD GPU 73a5", "0000:03:00.0", 16368), amd("AMD GPU 164e", "0000:10:00.0", 512)
PAIR = [amd("AMD GPU 7551", f"0000:0{at}:00.0", 32624, "gfx1201") for at in (3, 6)]
BESIDE = amd("AMD GPU 13c0", "0000:72:00.0", 512, "gfx1036", integrated=True)
OLD = amd("AMD GPU 66af", "0000:03:00.0", 16368, "gfx906")
NEW = amd("AMD GPU 7480", "0000:04:00.0", 16368, "gfx1102")
ARC, OWN = intel("e20b", "0000:04:00.0", integrated=False), intel("7d67", "0000:00:02.0", integrated=True)
M5 = Gpu(vendor="Apple", name="Apple M5 Max", driver="metal", total=131072 * MIB, integrated=True)


def uma(number: int, name: str, driver: str, shared: bool) -> str:
    return f"ggml_vulkan: {number} = {name} ({driver}) | uma: {int(shared)} | fp16: 1\n"


class Case(NamedTuple):
    cards: Sequence[Gpu]
    lines: Sequence[str]
    found: Sequence[Gpu | None]
    log: str = ""
    targets: Mapping[str, str] = {}
    hidden: str = ""


CASES = {
    "the numbers of CUDA are not those of the driver": Case(
        [TI, BIG],
        [
            "CUDA0: NVIDIA GeForce RTX 5080 (16275 MiB, 14985 MiB free)",
            "CUDA1: NVIDIA GeForce RTX 5060 Ti (16283 MiB, 15172 MiB free)",
        ],
        [BIG, TI],
    ),
    "a name that begins with another's": Case(
        [PLAIN, LONGER],
        [
            "CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)",
            "CUDA1: NVIDIA GeForce RTX 3080 (9875 MiB, 9650 MiB free)",
        ],
        [LONGER, PLAIN],
    ),
    "equal cards are in the order of the bus": Case([P40[2], RTX, P40[0], P40[1]], FOUR, [RTX, *P40]),
    "one of three equal cards is in doubt when others are hidden": Case(
        [RTX, *P40], FOUR[:2], [RTX, None], hidden="3,0"
    ),
    "a hidden one of equal cards is known by its number": Case(P40, FOUR[1:3], P40[1:], hidden="1,2"),
    "or by its UUID": Case([*P40, RTX], FOUR[1:2], [P40[1]], hidden="GPU-0000:06"),
    "cards whose driver tells no name are known by memory and kind": Case(
        [UNNAMED, APU],
        [
            "Vulkan0: AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO) (72540 MiB, 71657 MiB free)",
            "Vulkan1: AMD Radeon RX 6950 XT (RADV NAVI21) (16368 MiB, 1798 MiB free)",
        ],
        [APU, UNNAMED],
        log=uma(0, "AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO)", "radv", True)
        + uma(1, "AMD Radeon RX 6950 XT (RADV NAVI21)", "radv", False),
    ),
    "targets tell cards apart": Case(
        [OLD, NEW],
        [
            "ROCm0: AMD Radeon Graphics (16368 MiB, 16000 MiB free)",
            "ROCm1: AMD Radeon Graphics (16368 MiB, 1 MiB free)",
        ],
        [NEW, OLD],
        targets={"ROCm0": "gfx1102", "ROCm1": "gfx906"},
    ),
    "two equal cards beside a processor's own": Case(
        [BESIDE, PAIR[1], PAIR[0]],
        [
            "Vulkan0: AMD Radeon AI PRO R9700 (RADV GFX1201) (32624 MiB, 28352 MiB free)",
            "Vulkan1: AMD Radeon AI PRO R9700 (RADV GFX1201) (32624 MiB, 32566 MiB free)",
            "Vulkan2: AMD Ryzen 9 9950X 16-Core Processor (RADV RAPHAEL_MENDOCINO) (65201 MiB, 64905 MiB free)",
        ],
        [*PAIR, BESIDE],
        log=uma(2, "AMD Ryzen 9 9950X 16-Core Processor (RADV RAPHAEL_MENDOCINO)", "radv", True),
    ),
    "mixed makers and an integrated one": Case(
        [OWN, BIG, ARC, RADEON],
        [
            "Vulkan0: Intel(R) Arc(TM) B580 Graphics (BMG G21) (12216 MiB, 11959 MiB free)",
            "Vulkan1: Intel(R) Graphics (ARL) (76029 MiB, 23270 MiB free)",
            "Vulkan2: NVIDIA GeForce RTX 5080 (16303 MiB, 15172 MiB free)",
        ],
        [ARC, OWN, BIG],
        log=uma(0, "Intel(R) Arc(TM) B580 Graphics (BMG G21)", "Intel open-source Mesa driver", False)
        + uma(1, "Intel(R) Graphics (ARL)", "Intel open-source Mesa driver", True),
    ),
    "a part of a card": Case([H100], ["CUDA0: NVIDIA H100 80GB HBM3 MIG 1g.10gb (9856 MiB, 9800 MiB free)"], [H100]),
    "the name of every integrated one": Case([RADEON], ["ROCm0: AMD Radeon Graphics (512 MiB, 500 MiB free)"], [None]),
    "an Intel card by its number": Case(
        [OWN, ARC], ["SYCL0: Intel(R) Graphics [0xe20b] (32657 MiB, 32145 MiB free)"], [ARC]
    ),
    "other machines' devices have no card here": Case(
        [BIG], ["RPC0: 10.0.0.7:50052 (16303 MiB, 15172 MiB free)"], [None]
    ),
    "Apple's processor": Case([M5], ["MTL0: Apple M5 Max (110100 MiB, 110099 MiB free)"], [M5]),
}


@pytest.mark.parametrize("name", CASES)
def test_which_card_is_behind_a_device(name: str) -> None:
    case = CASES[name]
    seen = look(*case.cards, hidden={"CUDA_VISIBLE_DEVICES": case.hidden})
    found = identify(devices(*case.lines, log=case.log), seen, case.targets)
    assert [(one.pci, one.uuid) for one in found] == [(gpu and gpu.pci, gpu and gpu.uuid) for gpu in case.found]
    pairs = [(one.integrated, gpu.integrated) for one, gpu in zip(found, case.found, strict=True) if gpu is not None]
    assert all(mine is its for mine, its in pairs if its is not None)
    assert {one.driver for one in found if one.name.startswith("CUDA")} <= {"570.86"}, "also of one that is in doubt"


def test_a_card_through_two_backends_is_one_card_and_a_software_renderer_is_none() -> None:
    seen = look(RADEON, TI, BIG, loaders={"vulkan": "/usr/lib/libvulkan.so.1", "vulkan/radeon": "Mesa 25.0.7"})
    cuda, rocm, nvidia_card, radv, software = identify(
        devices(
            "CUDA0: NVIDIA GeForce RTX 5080 (16275 MiB, 14985 MiB free)",
            "ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24400 MiB free)",
            "Vulkan2: NVIDIA GeForce RTX 5080 (16303 MiB, 15172 MiB free)",
            "Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)",
            LAVAPIPE,
            log=uma(0, "AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv", False)
            + uma(2, "NVIDIA GeForce RTX 5080", "NVIDIA", False),
        ),
        seen,
        {"ROCm0": "gfx1100"},
    )
    assert (rocm.pci, radv.pci, software.pci) == (RADEON.pci, RADEON.pci, None)
    assert rocm.id == radv.id != software.id
    assert radv.driver == "radv Mesa 25.0.7"
    assert cuda.id == nvidia_card.id
    assert nvidia_card.driver == cuda.driver == "570.86"


def test_drivers_are_told_apart_by_their_versions_alone() -> None:
    before = look(TI, RADEON, loaders={"vulkan": "/lib/libvulkan.so.1", "vulkan/radeon": "Mesa 25.0.7"})
    assert drivers_of(before) == drivers_of(look(RADEON, structs.replace(TI, free=1), loaders=dict(before.loaders)))
    updated = look(structs.replace(TI, driver_version="580.10"), RADEON, loaders=dict(before.loaders))
    assert drivers_of(updated) != drivers_of(before)
    mesa = look(TI, RADEON, loaders={"vulkan": "/lib/libvulkan.so.1", "vulkan/radeon": "Mesa 25.1.0"})
    assert drivers_of(mesa) != drivers_of(before)


GPUS = st.lists(
    st.sampled_from([TI, BIG, RADEON, RTX, *P40, intel("7d67", "0000:00:02.0", integrated=True)]), unique=True
)
NAMES = st.sampled_from(
    ["NVIDIA GeForce RTX 5080", "Tesla P40", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "Intel(R) Graphics", "?"]
)
LISTED = st.lists(
    st.builds(
        lambda backend, number, what, mib: Device(name=f"{backend}{number}", description=what, total=mib * MIB, free=0),
        st.sampled_from(["CUDA", "Vulkan", "ROCm", "SYCL", "RPC"]),
        st.integers(0, 5),
        NAMES,
        st.sampled_from([2048, 16303, 24560]),
    ),
    unique_by=lambda device: device.name,
    max_size=8,
)


@given(LISTED, GPUS, st.sampled_from(["", "0", "1,0", "0,0", "GPU-", "GPU-0000:05,GPU-0000:05", "-1", "x"]))
def test_no_backend_gets_a_card_twice_and_no_maker_anothers(listed: list[Device], gpus: list[Gpu], hidden: str) -> None:
    seen = look(*gpus, hidden={"CUDA_VISIBLE_DEVICES": hidden})
    found = identify(listed, seen)
    assert [device.name for device in found] == [device.name for device in listed]
    by_place = {gpu.pci: gpu for gpu in gpus}
    taken = [(device.name.rstrip("0123456789"), device.pci) for device in found if device.pci is not None]
    assert len(taken) == len(set(taken))
    for backend, pci in taken:
        maker = {"CUDA": "NVIDIA", "ROCm": "AMD", "SYCL": "Intel"}.get(backend)
        assert maker in (None, by_place[pci].vendor)
