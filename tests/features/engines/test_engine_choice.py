"""Which devices work together, and which seat serves: the order is total, says why, and puts what works first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.machine_look import MachineLook
from appliance.features.engines.core.choice import EngineWish, Ranked, best, device_flags, rank, seats_of
from appliance.features.engines.core.listing import CPU, Device, Fault
from appliance.features.engines.core.standing import Probation, Proof, ProofKey, Seat
from appliance.features.engines.core.state import EngineState

NOW = 100.0
FAULTS: list[Fault] = ["load", "crash", "garbage", "hang", "memory", "missing"]
LOOK = MachineLook(platform="linux-x64", system="Test 1", environment="native", cpu="Test CPU")
PROCESSOR = Device(name=CPU, description="Test CPU", total=1 << 34, free=1 << 34)
CARD = Device(name="CUDA0", description="Test Card", total=1 << 33, free=1 << 33, pci="0000:01:00.0")
SECOND = structs.replace(CARD, name="CUDA1", pci="0000:02:00.0")
DEVICES: dict[tuple[Device, ...], str] = {
    (PROCESSOR,): "cpu",
    (CARD,): "cuda12",
    (CARD, SECOND): "cuda12",
    (Device(name="Vulkan0", description="llvmpipe", total=1 << 31, free=1 << 31, software=True),): "vulkan",
    (): "unknown",
}


def seat(*devices: Device, place: int = 1, damage: str = "", backend: str = "") -> Seat:
    backend = backend or DEVICES[devices]
    return Seat(
        build=f"linux-x64-{backend}/b{place}", backend=backend, digest=f"{backend}{place}{len(devices)}", place=place,
        devices=devices, damage=damage,
    )  # fmt: skip


def proof(of: Seat, device: Device, fault: Fault | None = None, speed: float | None = 100.0) -> Proof:
    return Proof(
        key=ProofKey(digest=of.digest, device=device.id, driver=device.driver, system=LOOK.system),
        build=of.build,
        device=device.name,
        fault=fault,
        why="it lied" if fault else "",
        prompt_speed=speed if fault is None else None,
        generation_speed=speed if fault is None else None,
    )


def proofs(*of: Seat, speed: float | None = 100.0) -> list[Proof]:
    return [proof(one, device, speed=speed) for one in of for device in one.devices]


def knowing(known: Sequence[Proof], waiting: Sequence[Probation] = ()) -> EngineState:
    return EngineState(look=LOOK, proofs=tuple(known), probations=tuple(waiting))


def order(ranked: Sequence[Ranked]) -> list[str]:
    return [one.seat.id for one in ranked]


Situation = tuple[list[Seat], list[Proof], list[Probation], EngineWish | None]
WORDS = ("cuda", "cuda12", "cpu", "vulkan", "linux-x64-cuda12/b1", "nobody")


@st.composite
def any_seat(draw: st.DrawFn) -> Seat:
    devices = draw(st.sampled_from(list(DEVICES)))
    damage = draw(st.sampled_from(["", "", "", "libggml.so is gone"]))
    return seat(*devices, place=draw(st.integers(0, 4)), damage=damage)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Some seats, of which some are proven, some have failed, and some wait."""
    chosen = draw(st.lists(any_seat(), unique_by=lambda one: one.id, max_size=7))
    known: list[Proof] = []
    waiting: list[Probation] = []
    for one in chosen:
        known += [
            proof(one, device, draw(st.sampled_from([None, None, *FAULTS])), draw(st.sampled_from([1.0, 50.0, None])))
            for device in one.devices
            if draw(st.booleans())
        ]
        if draw(st.booleans()):
            until = NOW + draw(st.sampled_from([-1.0, 0.0, 60.0]))
            waiting.append(
                Probation(seat=one.id, digest=one.digest, model="m", failures=1, why="x", since=NOW, until=until)
            )
    wanted = (
        EngineWish(engine=draw(st.sampled_from(WORDS)), pinned=draw(st.booleans())) if draw(st.booleans()) else None
    )
    return chosen, known, waiting, wanted


def ranked_in(situation: Situation) -> list[Ranked]:
    chosen, known, waiting, wanted = situation
    return rank(chosen, knowing(known, waiting), wanted=wanted, model="m", now=NOW)


@given(situations())
def test_every_seat_is_ranked_once_and_what_cannot_be_used_comes_last(
    situation: Situation,
) -> None:
    chosen, known, _, wanted = situation
    ranked = ranked_in(situation)
    expected = [one for one in chosen if wanted is None or not wanted.pinned or wanted.matches(one)]
    assert sorted(order(ranked)) == sorted(one.id for one in expected)
    usable = [one.usable for one in ranked]
    assert usable == sorted(usable, reverse=True)
    for one in ranked:
        assert one.why
        assert not (one.seat.damage and one.usable)
        if any(not each.ok for each in knowing(known).proofs_of(one.seat, NOW)):
            assert not one.usable


@given(situations(), st.randoms())
def test_the_order_depends_on_nothing_but_what_is_known(situation: Situation, random: Random) -> None:
    chosen, known, waiting, wanted = situation
    shuffled, others = list(chosen), list(waiting)
    random.shuffle(shuffled)
    random.shuffle(others)
    assert ranked_in((shuffled, known, others, wanted)) == ranked_in(situation)


@given(situations())
def test_what_waits_is_tried_when_nothing_else_is_left(
    situation: Situation,
) -> None:
    ranked = ranked_in(situation)
    usable = [one for one in ranked if one.usable]
    assert (best(ranked) is None) == (not usable)
    waits = [one.standing == "probation" for one in usable]
    assert waits == sorted(waits)
    tried: list[str] = []
    while (one := best(ranked, tried)) is not None:
        tried.append(one.seat.id)
    assert tried == order(usable), "each of them is tried once, in this order"


@given(situations())
def test_what_somebody_asked_for_goes_first_and_a_software_renderer_else_behind_the_processor(
    situation: Situation,
) -> None:
    at_once = [one for one in ranked_in(situation) if one.standing in ("proven", "untried")]
    asked_for = [one.wanted for one in at_once]
    assert asked_for == sorted(asked_for, reverse=True)
    software = [one.seat.software for one in at_once if not one.wanted]
    assert software == sorted(software), "behind every other seat that can be used at once"


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.integers(0, 3), st.integers(0, 3))
def test_of_two_proven_seats_the_one_that_is_a_tenth_faster_goes_first_else_the_better_placed(
    cpu_speed: float, gpu_speed: float, cpu_place: int, gpu_place: int
) -> None:
    on_cpu, on_gpu = seat(PROCESSOR, place=cpu_place), seat(CARD, place=gpu_place)
    known = proofs(on_cpu, speed=cpu_speed) + proofs(on_gpu, speed=gpu_speed)
    ranked = rank([on_cpu, on_gpu], knowing(known))
    if gpu_speed > cpu_speed / 0.89:
        assert order(ranked)[0] == on_gpu.id
    elif cpu_speed > gpu_speed / 0.89:
        assert order(ranked)[0] == on_cpu.id
    elif max(cpu_speed, gpu_speed) < min(cpu_speed, gpu_speed) / 0.91 and cpu_place != gpu_place:
        assert order(ranked)[0] == (on_cpu.id if cpu_place < gpu_place else on_gpu.id)


@given(st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=6, unique=True))
def test_the_first_of_the_proven_takes_hardly_longer_than_the_fastest(speeds: list[float]) -> None:
    chosen = [seat(CARD, place=place) for place in range(len(speeds))]
    known = [each for one, speed in zip(chosen, speeds, strict=True) for each in proofs(one, speed=speed)]
    ranked = rank(chosen, knowing(known))
    least = min(one.seconds or 0.0 for one in ranked)
    assert (ranked[0].seconds or 0.0) * 0.9 <= least


def test_a_proven_card_goes_before_the_processor_and_an_untried_one_behind() -> None:
    on_cpu, on_gpu = seat(PROCESSOR), seat(CARD)
    slow, fast = proofs(on_cpu, speed=10.0), proofs(on_gpu, speed=1000.0)
    assert order(rank([on_cpu, on_gpu], knowing(slow + fast))) == [on_gpu.id, on_cpu.id]
    assert order(rank([on_cpu, on_gpu], knowing(slow))) == [on_cpu.id, on_gpu.id]
    assert order(rank([on_gpu, on_cpu], knowing([]))) == [on_cpu.id, on_gpu.id]


def test_two_cards_are_proven_when_both_are_and_as_fast_as_the_slower() -> None:
    both = seat(CARD, SECOND)
    one = knowing([proof(both, CARD, speed=100.0)])
    assert rank([both], one)[0].standing == "untried"
    two = knowing([proof(both, CARD, speed=100.0), proof(both, SECOND, speed=10.0)])
    (ranked,) = rank([both], two)
    assert ranked.standing == "proven"
    assert ranked.seconds == proof(both, SECOND, speed=10.0).nominal_seconds
    assert "at 10 and 10 tokens/s" in ranked.why
    failed = knowing([proof(both, CARD), proof(both, SECOND, "garbage")])
    assert rank([both], failed)[0].standing == "failed"


def test_a_backend_is_asked_for_by_its_name_and_not_by_what_its_processor_seat_is() -> None:
    on_gpu, its_cpu, on_cpu = seat(CARD), seat(PROCESSOR, backend="cuda12"), seat(PROCESSOR)
    assert [EngineWish(engine="cuda").matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [True, False, False]
    assert [EngineWish(engine=its_cpu.build).matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [True, True, False]
    assert [EngineWish(engine="cpu").matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [False, False, True]


def test_a_card_that_nobody_has_tried_does_not_go_before_its_own_build_on_the_processor() -> None:
    on_card = seat(CARD)
    spare = structs.replace(seat(PROCESSOR, backend="cuda12"), spare=True)
    assert order(rank([on_card, spare], knowing([]))) == [spare.id, on_card.id]
    assert order(rank([on_card, spare], knowing(proofs(spare)))) == [spare.id, on_card.id]
    assert order(rank([on_card, spare], knowing(proofs(on_card, spare)))) == [on_card.id, spare.id]
    made_for_it = seat(PROCESSOR)
    assert order(rank([spare, made_for_it], knowing([]))) == [made_for_it.id, spare.id]
    assert order(rank([spare, made_for_it], knowing(proofs(made_for_it, speed=50) + proofs(spare)))) == [
        made_for_it.id, spare.id,
    ]  # fmt: skip


def a_card(name: str, *, software: bool = False, integrated: bool | None = None) -> Device:
    words = f"Card {name}"
    return Device(name=name, description=words, total=1, free=1, software=software, integrated=integrated)


BUILD = Seat(build="linux-x64-cuda12/b1", backend="cuda12", digest="d", place=2)


@pytest.mark.parametrize(
    ("devices", "failed", "seats"),
    [
        ([CARD, SECOND], [], ["CUDA0+CUDA1", "CPU"]),
        ([a_card("Vulkan0"), a_card("Vulkan1", integrated=True)], [], ["Vulkan0", "Vulkan1", "CPU"]),
        ([CARD, SECOND, a_card("CUDA2", software=True)], ["0000:02:00.0"], ["CUDA0", "CUDA1", "CUDA2", "CPU"]),
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
    damaged = seats_of(structs.replace(BUILD, damage="gone"), [CARD], PROCESSOR)
    assert [seat.damage for seat in damaged] == ["gone", "gone"]


def test_flags_name_the_devices() -> None:
    together, on_cpu = seats_of(BUILD, (CARD, SECOND), PROCESSOR)
    assert device_flags(together, (CARD, SECOND)) == ("--device", "CUDA0,CUDA1")
    assert device_flags(on_cpu, (CARD, SECOND)) == ("--device", "none")


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False]), st.booleans()), max_size=6),
)
def test_every_device_is_in_one_seat(cards: list[tuple[bool, bool | None, bool]]) -> None:
    devices = [a_card(f"Vulkan{i}", software=s, integrated=g) for i, (s, g, _) in enumerate(cards)]
    failed = [device.id for device, (_, _, bad) in zip(devices, cards, strict=True) if bad]
    seats = seats_of(BUILD, devices, PROCESSOR, failed)
    seated = [device.name for seat in seats for device in seat.devices if not seat.on_cpu]
    assert sorted(seated) == sorted(device.name for device in devices)
    assert len({seat.id for seat in seats}) == len(seats)
    assert sum(seat.on_cpu for seat in seats) == 1
