"""Cards by name: a name means the same cards whatever the engine calls them, and never others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.engines.core.cards import meant_by, seats_on, why_none
from appliance.features.engines.core.choice import seats_of
from appliance.features.engines.core.listing import Device, cpu_device
from appliance.features.engines.core.standing import Seat

PROCESSOR = cpu_device("Test CPU", 1 << 34)
NAMES = (
    "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4070", "NVIDIA GeForce RTX 4070 Ti", "AMD Radeon RX 7900 XT",
    "AMD Radeon RX 7900 XT (RADV NAVI31)", "Intel(R) Arc(tm) A770 Graphics", "NVIDIA RTX 4090 Laptop GPU",
)  # fmt: skip


def card(name: str, description: str, bus: int | None = None) -> Device:
    pci = None if bus is None else f"0000:{bus:02x}:00.0"
    return Device(name=name, description=description, total=8 << 30, free=8 << 30, pci=pci)


def offer(backend: str, *devices: Device) -> list[Seat]:
    build = Seat(build=f"linux-x64-{backend}/b1", backend=backend, digest=backend, place=1)
    return seats_of(build, devices, PROCESSOR)


CUDA = (
    card("CUDA0", "NVIDIA GeForce RTX 4070 Ti", 3),
    card("CUDA1", "NVIDIA GeForce RTX 4070", 2),
    card("CUDA2", "NVIDIA GeForce RTX 4090", 5),
    card("CUDA3", "NVIDIA GeForce RTX 4090", 4),
)
VULKAN = (
    card("Vulkan0", "NVIDIA GeForce RTX 4070", 2),
    card("Vulkan1", "NVIDIA GeForce RTX 4090", 4),
    card("Vulkan2", "AMD Radeon RX 7900 XT (RADV NAVI31)", 7),
)


def test_a_processor_has_its_name_or_is_called_so() -> None:
    assert PROCESSOR.description == "Test CPU"
    assert cpu_device("", 1).description == cpu_device("", 1).name


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("RTX 4070", ["CUDA1"]),
        ("geforce rtx 4070 ti", ["CUDA0"]),
        ("NVIDIA GeForce RTX 4090", ["CUDA2", "CUDA3"]),
        ("4090", ["CUDA2", "CUDA3"]),
        ("rtx 4090:1", ["CUDA3"]),
        ("RTX 4090:2", ["CUDA2"]),
        ("RTX 4090:3", []),
        ("RTX 4090 : 0", []),
        ("cuda0", ["CUDA0"]),
        ("00000000:05:00.0", ["CUDA2"]),
        ("geforce", ["CUDA0", "CUDA1", "CUDA2", "CUDA3"]),
        ("NVIDIA", ["CUDA0", "CUDA1", "CUDA2", "CUDA3"]),
        ("407", []),
        ("", []),
        (":1", []),
    ],
)
def test_what_a_name_means(word: str, meant: list[str]):
    assert [device.name for device in meant_by(word, CUDA)] == meant


def ids(seats: list[Seat]) -> list[str]:
    return [seat.id.partition("/b1:")[2] for seat in seats]


def test_a_card_has_one_name_for_all_engines():
    seats = [*offer("cuda12", *CUDA), *offer("vulkan", *VULKAN)]
    assert ids(seats_on(seats, ["RTX 4070"])) == ["CUDA1", "Vulkan0"]
    assert ids(seats_on(seats, ["Radeon RX 7900 XT"])) == ["Vulkan2"]
    assert ids(seats_on(seats, ["RTX 4070", "RTX 4090:1"])) == ["CUDA1+CUDA3", "Vulkan0+Vulkan1"]
    assert ids(seats_on(seats, ["RTX 4090", "7900 XT"])) == ["Vulkan1+Vulkan2"]
    assert ids(seats_on(seats, ["CPU"])) == ["CPU", "CPU"]


def test_what_is_not_there_is_told_with_what_is():
    seats = [*offer("cuda12", *CUDA[:1]), *offer("vulkan", *VULKAN)]
    assert why_none(seats, ["RTX 4070"]) == ""
    assert why_none(seats, ["RTX 5090"]) == (
        "there is no graphics card 'RTX 5090': the engines list NVIDIA GeForce RTX 4070 Ti (CUDA0), "
        "NVIDIA GeForce RTX 4070 (Vulkan0), NVIDIA GeForce RTX 4090 (Vulkan1), "
        "AMD Radeon RX 7900 XT (RADV NAVI31) (Vulkan2)"
    )
    assert "no engine uses CUDA0 and Vulkan2 together" in why_none(seats, ["CUDA0", "Vulkan2"])
    assert why_none(offer("cpu"), ["4090"]).endswith("no engine lists a graphics card here")


cards = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=5).flatmap(
    lambda found: st.permutations(range(len(found))).map(
        lambda order: tuple(
            card(f"Vulkan{n}", name, bus if placed else None)
            for n, ((name, placed), bus) in enumerate(zip(found, order, strict=True))
        )
    )
)
names = st.sampled_from([*NAMES, "RTX 4090", "rtx  4070", "arc a770", "Vulkan1", "7900 xt", "CPU", "nobody"])


@given(cards, st.lists(names | names.map("{}:2".format), max_size=3))
def test_seats_on_cards_have_these_cards_alone_and_all_of_them(devices: tuple[Device, ...], named: list[str]):
    seats = offer("vulkan", *devices)
    found = seats_on(seats, named)
    if not named:
        assert found == seats
        return
    there = [*devices, PROCESSOR]
    meant = {device.name for word in named for device in meant_by(word, there)}
    for seat in found:
        assert {device.name for device in seat.devices} == meant
        assert any({device.name for device in seat.devices} <= {d.name for d in whole.devices} for whole in seats)
    assert len({seat.id for seat in found}) == len(found)
    told = why_none(seats, named)
    assert bool(told) is not bool(found)
    if told.startswith("there is no graphics card"):
        assert all(device.description in told and device.name in told for device in devices)


@given(cards, names)
def test_numbers_take_the_cards_of_a_name_one_by_one(devices: tuple[Device, ...], word: str):
    meant = meant_by(word, devices)
    each = [meant_by(f"{word}:{n}", devices) for n in range(1, len(devices) + 2)]
    assert sorted(device.name for some in each for device in some) == sorted(device.name for device in meant)
    assert all(len(some) <= 1 for some in each)
    assert meant_by(word.upper(), devices) == meant_by(f"  {word.lower()} ", devices) == meant


@given(cards)
def test_a_devices_own_name_means_it_alone(devices: tuple[Device, ...]):
    for device in devices:
        assert meant_by(device.name, devices) == [device]
