"""Which seat serves: the order is total, says why, and never puts what does not work before what does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.features.engines.core.choice import Ranked, WantedEngine, best, rank
from appliance.features.engines.core.listing import CPU, Device, Fault
from appliance.features.engines.core.standing import Probation, Proof, ProofKey, Seat

NOW = 1000.0
FAULTS: list[Fault] = ["load", "crash", "garbage", "hang", "memory", "missing"]
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
        build=f"linux-x64-{backend}/b{place}", backend=backend, digest=f"{backend}{place}", place=place,
        devices=devices, damage=damage,
    )  # fmt: skip


def proof(of: Seat, device: Device, fault: Fault | None = None, speed: float | None = 100.0) -> Proof:
    return Proof(
        key=ProofKey(digest=of.digest, device=device.id, driver=device.driver, system="Test 1"),
        build=of.build,
        device=device.name,
        fault=fault,
        why="it lied" if fault else "",
        prompt_speed=speed if fault is None else None,
        generation_speed=speed if fault is None else None,
    )


def proofs(*of: Seat, speed: float | None = 100.0) -> dict[str, Sequence[Proof]]:
    return {one.id: [proof(one, device, speed=speed) for device in one.devices] for one in of}


def order(ranked: Sequence[Ranked]) -> list[str]:
    return [one.seat.id for one in ranked]


Situation = tuple[list[Seat], dict[str, Sequence[Proof]], list[Probation], WantedEngine | None]
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
    known: dict[str, Sequence[Proof]] = {}
    waiting: list[Probation] = []
    for one in chosen:
        known[one.id] = [
            proof(one, device, draw(st.sampled_from([None, None, *FAULTS])), draw(st.sampled_from([1.0, 50.0, None])))
            for device in one.devices
            if draw(st.booleans())
        ]
        if draw(st.booleans()):
            until = NOW + draw(st.sampled_from([-1.0, 0.0, 60.0]))
            waiting.append(
                Probation(seat=one.id, digest=one.digest, model="m", failures=1, why="x", since=NOW, until=until)
            )
    wanted = WantedEngine(word=draw(st.sampled_from(WORDS)), only=draw(st.booleans())) if draw(st.booleans()) else None
    return chosen, known, waiting, wanted


def ranked_in(situation: Situation) -> list[Ranked]:
    chosen, known, waiting, wanted = situation
    return rank(chosen, known, waiting, wanted=wanted, model="m", now=NOW)


@given(situations())
def test_every_seat_is_ranked_once_and_what_cannot_be_used_comes_last(
    situation: Situation,
) -> None:
    chosen, _, _, wanted = situation
    ranked = ranked_in(situation)
    expected = [one for one in chosen if wanted is None or not wanted.only or wanted.matches(one)]
    assert sorted(order(ranked)) == sorted(one.id for one in expected)
    usable = [one.usable for one in ranked]
    assert usable == sorted(usable, reverse=True)
    for one in ranked:
        assert one.why
        assert not (one.seat.damage and one.usable)
        if any(not each.ok for each in situation[1][one.seat.id]):
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
    ranked = rank([on_cpu, on_gpu], proofs(on_cpu, speed=cpu_speed) | proofs(on_gpu, speed=gpu_speed))
    if gpu_speed > cpu_speed / 0.89:
        assert order(ranked)[0] == on_gpu.id
    elif cpu_speed > gpu_speed / 0.89:
        assert order(ranked)[0] == on_cpu.id
    elif max(cpu_speed, gpu_speed) < min(cpu_speed, gpu_speed) / 0.91 and cpu_place != gpu_place:
        assert order(ranked)[0] == (on_cpu.id if cpu_place < gpu_place else on_gpu.id)


@given(st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=6, unique=True))
def test_the_first_of_the_proven_takes_hardly_longer_than_the_fastest(speeds: list[float]) -> None:
    chosen = [seat(CARD, place=place) for place in range(len(speeds))]
    known: dict[str, Sequence[Proof]] = {}
    for one, speed in zip(chosen, speeds, strict=True):
        known |= proofs(one, speed=speed)
    ranked = rank(chosen, known)
    least = min(one.seconds or 0.0 for one in ranked)
    assert (ranked[0].seconds or 0.0) * 0.9 <= least


def test_a_proven_card_goes_before_the_processor_and_an_untried_one_behind() -> None:
    on_cpu, on_gpu = seat(PROCESSOR), seat(CARD)
    slow, fast = proofs(on_cpu, speed=10.0), proofs(on_gpu, speed=1000.0)
    assert order(rank([on_cpu, on_gpu], slow | fast)) == [on_gpu.id, on_cpu.id]
    assert order(rank([on_cpu, on_gpu], slow)) == [on_cpu.id, on_gpu.id]
    assert order(rank([on_gpu, on_cpu], {})) == [on_cpu.id, on_gpu.id]


def test_two_cards_are_proven_when_both_are_and_as_fast_as_the_slower() -> None:
    both = seat(CARD, SECOND)
    one = {both.id: [proof(both, CARD, speed=100.0)]}
    assert rank([both], one)[0].standing == "untried"
    two = {both.id: [proof(both, CARD, speed=100.0), proof(both, SECOND, speed=10.0)]}
    (ranked,) = rank([both], two)
    assert ranked.standing == "proven"
    assert ranked.seconds == proof(both, SECOND, speed=10.0).nominal_seconds
    assert "at 10 and 10 tokens/s" in ranked.why
    failed = {both.id: [proof(both, CARD), proof(both, SECOND, "garbage")]}
    assert rank([both], failed)[0].standing == "failed"


def test_a_backend_is_asked_for_by_its_name_and_not_by_what_its_processor_seat_is() -> None:
    on_gpu, its_cpu, on_cpu = seat(CARD), seat(PROCESSOR, backend="cuda12"), seat(PROCESSOR)
    assert [WantedEngine(word="cuda").matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [True, False, False]
    assert [WantedEngine(word=its_cpu.build).matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [True, True, False]
    assert [WantedEngine(word="cpu").matches(one) for one in (on_gpu, its_cpu, on_cpu)] == [False, False, True]


def test_a_card_that_nobody_has_tried_does_not_go_before_its_own_build_on_the_processor() -> None:
    on_card = seat(CARD)
    spare = structs.replace(seat(PROCESSOR, backend="cuda12"), spare=True)
    assert order(rank([on_card, spare], {})) == [spare.id, on_card.id]
    assert order(rank([on_card, spare], proofs(spare))) == [spare.id, on_card.id]
    assert order(rank([on_card, spare], proofs(on_card, spare))) == [on_card.id, spare.id]
    made_for_it = seat(PROCESSOR)
    assert order(rank([spare, made_for_it], {})) == [made_for_it.id, spare.id]
    assert order(rank([spare, made_for_it], proofs(spare, made_for_it, speed=50) | proofs(spare))) == [
        made_for_it.id, spare.id,
    ]  # fmt: skip
