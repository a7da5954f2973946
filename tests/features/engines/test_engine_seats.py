"""Which of an engine's devices work together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.features.engines.core.choice import device_flags, seats_of
from appliance.features.engines.core.listing import Device, cpu_device
from appliance.features.engines.core.standing import Seat

PROCESSOR = cpu_device("Test CPU", 1 << 34)


def card(name: str, *, pci: str | None = None, software: bool = False, integrated: bool | None = None) -> Device:
    return Device(
        name=name, description=f"Card {name}", total=8 << 30, free=8 << 30, pci=pci, software=software,
        integrated=integrated,
    )  # fmt: skip


BUILD = Seat(build="linux-x64-cuda12/b1", backend="cuda12", digest="d", place=2)
CUDA0, CUDA1 = card("CUDA0", pci="0000:01:00.0"), card("CUDA1", pci="0000:02:00.0")


@pytest.mark.parametrize(
    ("devices", "failed", "seats"),
    [
        ([CUDA0, CUDA1], [], ["CUDA0+CUDA1", "CPU"]),
        ([card("Vulkan0"), card("Vulkan1", integrated=True)], [], ["Vulkan0", "Vulkan1", "CPU"]),
        ([CUDA0, CUDA1, card("CUDA2", software=True)], ["0000:02:00.0"], ["CUDA0", "CUDA1", "CUDA2", "CPU"]),
        ([], [], ["CPU"]),
        (None, [], [""]),
    ],
)
def test_which_devices_work_together(devices: list[Device] | None, failed: list[str], seats: list[str]) -> None:
    assert [seat.id.partition(":")[2] for seat in seats_of(BUILD, devices, PROCESSOR, failed)] == seats


def test_before_it_is_asked_only_a_build_for_processors_is_known_to_use_one() -> None:
    for build, on_cpu in ((BUILD, False), (structs.replace(BUILD, backend="cpu"), True)):
        (seat,) = seats_of(build, None, PROCESSOR)
        assert seat.on_cpu is on_cpu
        assert device_flags(seat, ()) == ()


def test_one_that_cannot_list_its_devices_offers_nothing_that_could_be_used_and_damage_is_on_every_seat() -> None:
    (seat,) = seats_of(structs.replace(BUILD, fault="it hung"), [], PROCESSOR)
    assert (seat.fault, seat.devices) == ("it hung", ())
    damaged = seats_of(structs.replace(BUILD, damage="gone"), [CUDA0], PROCESSOR)
    assert [seat.damage for seat in damaged] == ["gone", "gone"]


def test_flags_name_the_devices() -> None:
    together, on_cpu = seats_of(BUILD, (CUDA0, CUDA1), PROCESSOR)
    assert device_flags(together, (CUDA0, CUDA1)) == ("--device", "CUDA0,CUDA1")
    assert device_flags(on_cpu, (CUDA0, CUDA1)) == ("--device", "none")


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False]), st.booleans()), max_size=6),
)
def test_every_device_is_in_one_seat(cards: list[tuple[bool, bool | None, bool]]) -> None:
    devices = [card(f"Vulkan{i}", software=s, integrated=g) for i, (s, g, _) in enumerate(cards)]
    failed = [device.id for device, (_, _, bad) in zip(devices, cards, strict=True) if bad]
    seats = seats_of(BUILD, devices, PROCESSOR, failed)
    seated = [device.name for seat in seats for device in seat.devices if not seat.on_cpu]
    assert sorted(seated) == sorted(device.name for device in devices)
    assert len({seat.id for seat in seats}) == len(seats)
    assert sum(seat.on_cpu for seat in seats) == 1
