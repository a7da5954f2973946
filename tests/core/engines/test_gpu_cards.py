"""Which card is behind what an engine lists, on machines as people have them."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.engines.listing import Device, drivers_of, identify, parse_listing
from appliance.core.engines.machine import Gpu, MachineLook
from appliance.core.sizes import MIB


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


def places(found: tuple[Device, ...]) -> list[str | None]:
    return [device.pci for device in found]


TI, BIG = nvidia("GeForce RTX 5060 Ti", "0000:01:00.0", 16311), nvidia("GeForce RTX 5080", "0000:02:00.0", 16303)
RADEON = amd("Radeon RX 7900 XTX", "0000:03:00.0", 24560, "gfx1100")
LAVAPIPE = "Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)"


def test_the_numbers_of_cuda_are_not_those_of_the_driver() -> None:
    listed = devices(
        "CUDA0: NVIDIA GeForce RTX 5080 (16275 MiB, 14985 MiB free)",
        "CUDA1: NVIDIA GeForce RTX 5060 Ti (16283 MiB, 15172 MiB free)",
    )
    first, second = identify(listed, look(TI, BIG))
    assert (first.pci, first.uuid, first.driver) == (BIG.pci, BIG.uuid, "570.86")
    assert (second.pci, second.driver) == (TI.pci, "570.86")


def test_a_name_that_begins_with_anothers() -> None:
    plain, ti = nvidia("GeForce RTX 3080", "0000:01:00.0", 10240), nvidia("GeForce RTX 3080 Ti", "0000:02:00.0", 12288)
    listed = devices(
        "CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)",
        "CUDA1: NVIDIA GeForce RTX 3080 (9875 MiB, 9650 MiB free)",
    )
    assert places(identify(listed, look(plain, ti))) == [ti.pci, plain.pci]


P40 = [nvidia("Tesla P40", f"0000:0{at}:00.0", 24576) for at in (5, 6, 7)]
RTX = nvidia("GeForce RTX 3090", "0000:04:00.0", 24576)
FOUR = (
    "CUDA0: NVIDIA GeForce RTX 3090 (24154 MiB, 406 MiB free)",
    "CUDA1: Tesla P40 (24438 MiB, 22942 MiB free)",
    "CUDA2: Tesla P40 (24438 MiB, 24144 MiB free)",
    "CUDA3: Tesla P40 (24438 MiB, 24144 MiB free)",
)


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_equal_cards_are_in_the_order_of_the_bus(order: tuple[int, ...]) -> None:
    cards = [RTX, *P40]
    found = identify(devices(*FOUR), look(*(cards[at] for at in order)))
    assert places(found) == [RTX.pci, *(card.pci for card in P40)]


def test_one_of_three_equal_cards_is_in_doubt_when_others_are_hidden() -> None:
    found = identify(devices(*FOUR[:2]), look(RTX, *P40, hidden={"CUDA_VISIBLE_DEVICES": "3,0"}))
    assert places(found) == [RTX.pci, None]
    assert found[1].driver == "570.86"


def test_a_hidden_one_of_equal_cards_is_known_by_its_number_or_uuid() -> None:
    one = devices("CUDA0: Tesla P40 (24438 MiB, 22942 MiB free)")
    assert places(identify(one, look(*P40, hidden={"CUDA_VISIBLE_DEVICES": "2"}))) == [P40[2].pci]
    assert places(identify(one, look(*P40, RTX, hidden={"CUDA_VISIBLE_DEVICES": "GPU-0000:06"}))) == [P40[1].pci]
    two = devices(*(f"CUDA{at}: Tesla P40 (24438 MiB, 22942 MiB free)" for at in (0, 1)))
    assert places(identify(two, look(*P40, hidden={"CUDA_VISIBLE_DEVICES": "1,2"}))) == [P40[1].pci, P40[2].pci]


def test_a_card_through_cuda_and_through_vulkan_is_one_card() -> None:
    cuda = identify(devices("CUDA0: NVIDIA GeForce RTX 5080 (16275 MiB, 14985 MiB free)"), look(TI, BIG))
    log = (
        "ggml_vulkan: 0 = NVIDIA GeForce RTX 5060 Ti (NVIDIA) | uma: 0 | fp16: 1\n"
        "ggml_vulkan: 1 = NVIDIA GeForce RTX 5080 (NVIDIA) | uma: 0 | fp16: 1\n"
    )
    vulkan = identify(
        devices(
            "Vulkan0: NVIDIA GeForce RTX 5060 Ti (16311 MiB, 15172 MiB free)",
            "Vulkan1: NVIDIA GeForce RTX 5080 (16303 MiB, 15172 MiB free)",
            log=log,
        ),
        look(TI, BIG),
    )
    assert places(vulkan) == [TI.pci, BIG.pci]
    assert [cuda[0].id == other.id for other in vulkan] == [False, True]
    assert vulkan[1].driver == cuda[0].driver == "570.86"


def test_rocm_and_radv_are_one_card_and_a_software_renderer_is_none() -> None:
    seen = look(RADEON, loaders={"vulkan": "/usr/lib/libvulkan.so.1", "vulkan/radeon": "Mesa 25.0.7"})
    (rocm,) = identify(devices("ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24400 MiB free)"), seen, {"ROCm0": "gfx1100"})
    log = "ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: dot2\n"
    line = "Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)"
    radv, software = identify(devices(line, LAVAPIPE, log=log), seen)
    assert (rocm.pci, radv.pci, software.pci) == (RADEON.pci, RADEON.pci, None)
    assert rocm.id == radv.id != software.id
    assert radv.driver == "radv Mesa 25.0.7"


def test_cards_whose_driver_tells_no_name_are_known_by_memory_and_kind() -> None:
    big, apu = amd("AMD GPU 73a5", "0000:03:00.0", 16368), amd("AMD GPU 164e", "0000:10:00.0", 512)
    log = (
        "ggml_vulkan: 0 = AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO) (radv) | uma: 1 | fp16: 1\n"
        "ggml_vulkan: 1 = AMD Radeon RX 6950 XT (RADV NAVI21) (radv) | uma: 0 | fp16: 1\n"
    )
    found = identify(
        devices(
            "Vulkan0: AMD Ryzen 9 7950X3D 16-Core Processor (RADV RAPHAEL_MENDOCINO) (72540 MiB, 71657 MiB free)",
            "Vulkan1: AMD Radeon RX 6950 XT (RADV NAVI21) (16368 MiB, 1798 MiB free)",
            log=log,
        ),
        look(big, apu),
    )
    assert places(found) == [apu.pci, big.pci]
    assert [device.integrated for device in found] == [True, False]


def test_targets_tell_cards_apart() -> None:
    old, new = (
        amd("AMD GPU 66af", "0000:03:00.0", 16368, "gfx906"),
        amd("AMD GPU 7480", "0000:04:00.0", 16368, "gfx1102"),
    )
    lines = (
        "ROCm0: AMD Radeon Graphics (16368 MiB, 16000 MiB free)",
        "ROCm1: AMD Radeon Graphics (16368 MiB, 1 MiB free)",
    )
    assert places(identify(devices(*lines), look(old, new), {"ROCm0": "gfx1102", "ROCm1": "gfx906"})) == [
        new.pci,
        old.pci,
    ]


def test_two_equal_cards_beside_a_processors_own() -> None:
    first, second = (amd("AMD GPU 7551", f"0000:0{at}:00.0", 32624, "gfx1201") for at in (3, 6))
    apu = amd("AMD GPU 13c0", "0000:72:00.0", 512, "gfx1036", integrated=True)
    found = identify(
        devices(
            "Vulkan0: AMD Radeon AI PRO R9700 (RADV GFX1201) (32624 MiB, 28352 MiB free)",
            "Vulkan1: AMD Radeon AI PRO R9700 (RADV GFX1201) (32624 MiB, 32566 MiB free)",
            "Vulkan2: AMD Ryzen 9 9950X 16-Core Processor (RADV RAPHAEL_MENDOCINO) (65201 MiB, 64905 MiB free)",
            log="ggml_vulkan: 2 = AMD Ryzen 9 9950X 16-Core Processor (RADV RAPHAEL_MENDOCINO) (radv) | uma: 1 | x\n",
        ),
        look(apu, second, first),
    )
    assert places(found) == [first.pci, second.pci, apu.pci]


def test_mixed_makers_and_an_integrated_one() -> None:
    arc, own = intel("e20b", "0000:04:00.0", integrated=False), intel("7d67", "0000:00:02.0", integrated=True)
    log = (
        "ggml_vulkan: 0 = Intel(R) Arc(TM) B580 Graphics (BMG G21) (Intel open-source Mesa driver) | uma: 0 | x\n"
        "ggml_vulkan: 1 = Intel(R) Graphics (ARL) (Intel open-source Mesa driver) | uma: 1 | x\n"
        "ggml_vulkan: 2 = NVIDIA GeForce RTX 5080 (NVIDIA) | uma: 0 | x\n"
    )
    found = identify(
        devices(
            "Vulkan0: Intel(R) Arc(TM) B580 Graphics (BMG G21) (12216 MiB, 11959 MiB free)",
            "Vulkan1: Intel(R) Graphics (ARL) (76029 MiB, 23270 MiB free)",
            "Vulkan2: NVIDIA GeForce RTX 5080 (16303 MiB, 15172 MiB free)",
            log=log,
        ),
        look(own, BIG, arc, RADEON),
    )
    assert places(found) == [arc.pci, own.pci, BIG.pci]
    assert [device.integrated for device in found] == [False, True, False]


def test_a_part_of_a_card_and_the_name_of_every_integrated_one() -> None:
    h100 = nvidia("H100 80GB HBM3", "0000:0a:00.0", 81559)
    (part,) = identify(devices("CUDA0: NVIDIA H100 80GB HBM3 MIG 1g.10gb (9856 MiB, 9800 MiB free)"), look(h100))
    assert part.pci == h100.pci
    (own,) = identify(devices("ROCm0: AMD Radeon Graphics (512 MiB, 500 MiB free)"), look(RADEON))
    assert own.pci is None


def test_an_intel_card_by_its_number() -> None:
    arc, own = intel("e223", "0000:04:00.0", integrated=False), intel("7d67", "0000:00:02.0", integrated=True)
    (found,) = identify(devices("SYCL0: Intel(R) Graphics [0xe223] (32657 MiB, 32145 MiB free)"), look(own, arc))
    assert (found.pci, found.integrated) == (arc.pci, False)


def test_other_machines_devices_have_no_card_here() -> None:
    (found,) = identify(devices("RPC0: 10.0.0.7:50052 (16303 MiB, 15172 MiB free)"), look(BIG))
    assert (found.pci, found.driver) == (None, "")


def test_apples_processor() -> None:
    gpu = Gpu(vendor="Apple", name="Apple M5 Max", driver="metal", total=131072 * MIB, integrated=True)
    (found,) = identify(devices("MTL0: Apple M5 Max (110100 MiB, 110099 MiB free)"), look(gpu))
    assert (found.integrated, found.pci) == (True, None)


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
