"""Which of an engine's devices work together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.engines.choice import EngineOffer, device_flags, seats_of
from appliance.core.engines.listing import Device, cpu_device

PROCESSOR = cpu_device("Test CPU", 1 << 34)


def card(name: str, *, pci: str | None = None, software: bool = False, integrated: bool | None = None) -> Device:
    return Device(
        name=name, description=f"Card {name}", total=8 << 30, free=8 << 30, pci=pci, software=software,
        integrated=integrated,
    )  # fmt: skip


def offer(
    *devices: Device, backend: str = "cuda12", asked: bool = True, fault: str = "", damage: str = ""
) -> EngineOffer:
    return EngineOffer(
        build=f"linux-x64-{backend}/b1", backend=backend, digest="d", place=2, damage=damage, fault=fault,
        devices=devices if asked else None,
    )  # fmt: skip


def ids(offered: EngineOffer, *failed: str) -> list[str]:
    return [seat.id.partition(":")[2] for seat in seats_of(offered, PROCESSOR, failed)]


def test_equal_cards_work_together_and_the_processor_comes_behind() -> None:
    assert ids(offer(card("CUDA0"), card("CUDA1"))) == ["CUDA0+CUDA1", "CPU"]


def test_an_integrated_card_works_alone() -> None:
    assert ids(offer(card("Vulkan0"), card("Vulkan1", integrated=True), backend="vulkan")) == [
        "Vulkan0", "Vulkan1", "CPU",
    ]  # fmt: skip


def test_a_card_that_failed_and_a_software_renderer_spoil_nobody_elses_seat() -> None:
    devices = card("CUDA0", pci="0000:01:00.0"), card("CUDA1", pci="0000:02:00.0"), card("CUDA2", software=True)
    assert ids(offer(*devices), "0000:02:00.0") == ["CUDA0", "CUDA1", "CUDA2", "CPU"]


def test_nobody_knows_the_devices_of_a_gpu_build_before_it_is_asked() -> None:
    (seat,) = seats_of(offer(asked=False), PROCESSOR)
    assert seat.devices == ()
    assert not seat.on_cpu
    assert device_flags(seat, ()) == ()


def test_a_build_for_processors_needs_no_question_and_no_flag() -> None:
    (seat,) = seats_of(offer(backend="cpu", asked=False), PROCESSOR)
    assert seat.on_cpu
    assert device_flags(seat, ()) == ()


def test_one_that_cannot_list_its_devices_offers_nothing_that_could_be_used() -> None:
    (seat,) = seats_of(offer(fault="it hung"), PROCESSOR)
    assert seat.fault == "it hung"


def test_damage_is_on_every_seat() -> None:
    assert {seat.damage for seat in seats_of(offer(card("CUDA0"), damage="gone"), PROCESSOR)} == {"gone"}


def test_flags_name_the_devices() -> None:
    devices = card("CUDA0"), card("CUDA1")
    together, on_cpu = seats_of(offer(*devices), PROCESSOR)
    assert device_flags(together, devices) == ("--device", "CUDA0,CUDA1")
    assert device_flags(on_cpu, devices) == ("--device", "none")


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False]), st.booleans()), max_size=6),
)
def test_every_device_is_in_one_seat(cards: list[tuple[bool, bool | None, bool]]) -> None:
    devices = [card(f"Vulkan{i}", software=s, integrated=g) for i, (s, g, _) in enumerate(cards)]
    failed = [device.id for device, (_, _, bad) in zip(devices, cards, strict=True) if bad]
    seats = seats_of(offer(*devices, backend="vulkan"), PROCESSOR, failed)
    seated = [device.name for seat in seats for device in seat.devices if not seat.on_cpu]
    assert sorted(seated) == sorted(device.name for device in devices)
    assert len({seat.id for seat in seats}) == len(seats)
    assert sum(seat.on_cpu for seat in seats) == 1
