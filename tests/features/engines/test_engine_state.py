"""What is remembered of engines: the last word on a key counts, a pair that failed waits longer each time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.machine_look import MachineLook
from appliance.core.versions import BuildLine
from appliance.features.engines.core.listing import Device, Fault
from appliance.features.engines.core.standing import (
    BACK_OFF,
    CLOCK_SLACK,
    EASED,
    FAILED_HOLDS,
    FORGOTTEN,
    ContextTrial,
    ListedDevices,
    Probation,
    Proof,
    ProofKey,
    Seat,
    SeatFailed,
    after_failure,
    key_of,
)
from appliance.features.engines.core.state import (
    MOST_KEPT,
    BuildRemoved,
    EngineChosen,
    EngineState,
    Followed,
    Forgotten,
    Learnt,
    Trusted,
    reduce,
)

SYSTEM = "Linux 6.1.0"
LOOK = MachineLook(platform="linux-x64", system=SYSTEM, environment="native", cpu="Test CPU")
FAULTS: list[Fault | None] = [None, None, "crash", "garbage"]
digests = st.sampled_from(["d1", "d2", "d3"])
cards = st.sampled_from(["0000:01:00.0", "0000:02:00.0", "Test CPU"])


@st.composite
def some_proof(draw: st.DrawFn) -> Proof:
    key = ProofKey(
        digest=draw(digests), device=draw(cards), driver=draw(st.sampled_from(["550", "560"])), system=SYSTEM
    )
    fault = draw(st.sampled_from(FAULTS))
    return Proof(
        key=key,
        build="linux-x64-cuda12/b1",
        device="CUDA0",
        fault=fault,
        why=draw(st.text(max_size=9)) if fault else "",
        prompt_speed=None if fault else draw(st.none() | st.floats(0.1, 1e5)),
        at=draw(st.floats(0, 4e9)),
    )


@st.composite
def some_failure(draw: st.DrawFn) -> SeatFailed:
    return SeatFailed(
        build=draw(st.sampled_from(["a", "b"])),
        seat=draw(st.sampled_from(["a:CUDA0", "b:CPU"])),
        digest=draw(digests),
        model=draw(st.sampled_from(["m", "n"])),
        why=draw(st.text(max_size=9)),
        at=draw(st.floats(0, 4e9)),
        others=draw(st.booleans()),
    )


@st.composite
def some_listing(draw: st.DrawFn) -> ListedDevices:
    card = Device(name="CUDA0", description=draw(st.text(max_size=9)), total=1 << 33, free=0, pci=draw(cards))
    return ListedDevices(digest=draw(digests), system=SYSTEM, drivers="nvidia 550", devices=(card,))


some_events = st.lists(some_proof() | some_failure() | some_listing(), max_size=12)


def after(state: EngineState, *events: Learnt) -> EngineState:
    """What is remembered after the events."""
    for event in events:
        state = reduce(state, event)
    return state


@st.composite
def states(draw: st.DrawFn) -> EngineState:
    lines = draw(st.sampled_from([(), (BuildLine(name="x-y-cpu", current="x-y-cpu/b2", previous=("x-y-cpu/b1",)),)]))
    begun = EngineState(
        use=draw(st.sampled_from([None, "vulkan"])),
        models={"m": "cpu"},
        look=draw(st.sampled_from([None, LOOK])),
        lines=lines,
        withdrawn=draw(st.sampled_from([{}, {"x-y-cpu/b9": "it crashed"}])),
    )
    return after(begun, *draw(some_events))


@given(states(), some_proof())
def test_a_newer_proof_takes_the_place_of_the_one_with_its_key_and_of_no_other(
    state: EngineState, proof: Proof
) -> None:
    found = after(state, proof)
    assert [one for one in found.proofs if one.key == proof.key] == [proof]
    others = {one for one in found.proofs if one.key != proof.key}
    assert others == {one for one in state.proofs if one.key != proof.key}
    assert structs.replace(found, proofs=state.proofs) == state
    assert after(found, proof) == found


@given(states(), some_failure(), some_listing())
def test_a_pair_waits_once_and_a_build_is_listed_once(
    state: EngineState, failure: SeatFailed, listed: ListedDevices
) -> None:
    found = after(state, failure, listed)
    pairs = [(one.seat, one.model) for one in found.probations]
    assert len(pairs) == len(set(pairs))
    mine = [one for one in found.probations if (one.seat, one.model) == (failure.seat, failure.model)]
    assert not failure.others or [(one.since, one.why) for one in mine] == [(failure.at, failure.why)]
    assert failure.others or found.probations == state.probations
    names = [one.digest for one in found.listed]
    assert len(names) == len(set(names))
    assert listed in found.listed


@given(states(), some_failure(), st.sampled_from(["a:CUDA0", "b:CPU"]))
def test_a_seat_that_is_proven_again_waits_a_short_while_and_the_others_as_before(
    state: EngineState, failure: SeatFailed, seat: str
) -> None:
    state = after(state, *[structs.replace(failure, others=True)] * 4)
    found = after(state, Trusted(seat))
    for before, one in zip(state.probations, found.probations, strict=True):
        assert one.until == (min(before.until, before.since + EASED) if before.seat == seat else before.until)


@given(states(), st.none() | st.lists(digests, max_size=2).map(tuple))
def test_forgetting_forgets_just_that_and_keeps_what_was_chosen(
    state: EngineState, chosen: tuple[str, ...] | None
) -> None:
    found = after(state, Forgotten(chosen))
    gone = {"d1", "d2", "d3"} if chosen is None else set(chosen)
    assert found.proofs == tuple(one for one in state.proofs if one.key.digest not in gone)
    assert found.probations == tuple(one for one in state.probations if one.digest not in gone)
    assert found.listed == tuple(one for one in state.listed if one.digest not in gone)
    kept = ("use", "pinned", "models", "look", "lines", "withdrawn", "journal")
    assert all(getattr(found, name) == getattr(state, name) for name in kept)
    assert after(state, BuildRemoved("none", chosen or ())) == after(state, Forgotten(chosen or ()))


def test_a_choice_for_one_model_leaves_the_others_and_the_general_one_alone() -> None:
    state = EngineState(use="vulkan", pinned=True, models={"a": "cpu"}, withdrawn={"x": "it crashed", "y": "too slow"})
    both = after(state, EngineChosen(word="cuda12", model="b"))
    assert (both.use, both.pinned, both.models) == ("vulkan", True, {"a": "cpu", "b": "cuda12"})
    assert after(both, EngineChosen(word=None, model="a")).models == {"b": "cuda12"}
    free = after(both, EngineChosen(word=None))
    assert (free.use, free.pinned, free.models) == (None, False, both.models)
    assert after(free, EngineChosen(word="cpu", pinned=True)).pinned
    assert after(free, Followed("stable")) == structs.replace(free, channel="stable")
    assert after(free, EngineChosen(word="x", builds=("x",))).withdrawn == {"y": "too slow"}


@given(states())
def test_nothing_is_lost_on_the_way_to_json_and_what_a_newer_program_adds_is_passed_over(state: EngineState) -> None:
    plain = msgspec.to_builtins(state)
    plain["invented"] = {"later": [1, 2]}
    for each in (*plain["proofs"], *plain["probations"], *plain["listed"], *plain["lines"]):
        each["invented"] = "later"
    assert msgspec.json.decode(msgspec.json.encode(plain), type=EngineState) == state


@given(st.lists(some_proof(), max_size=6), st.floats(0, 4e9))
def test_proofs_are_found_for_exactly_this_build_card_driver_and_system(proofs: list[Proof], now: float) -> None:
    card = Device(name="CUDA0", description="Test Card", total=0, free=0, pci="0000:01:00.0", driver="550")
    seat = Seat(build="b", backend="cuda12", digest="d1", place=0, devices=(card,))
    state = after(EngineState(look=LOOK), *proofs)
    found = state.proofs_of(seat, now)
    mine = [one for one in proofs if one.key == key_of(seat, card, SYSTEM)]
    assert list(found) == [one for one in mine[-1:] if one.ok or abs(now - one.at) < FAILED_HOLDS]
    elsewhere = structs.replace(state, look=structs.replace(LOOK, system="Linux 6.2.0"))
    assert elsewhere.proofs_of(seat, now) == ()
    newer = structs.replace(card, driver="560.1")
    assert state.proofs_of(structs.replace(seat, devices=(newer,)), now) == ()


def test_the_latest_trial_of_keeping_contexts_counts_until_the_build_is_another() -> None:
    helped = ContextTrial(digest="d", build="b", architecture="llama", at=1.0)
    useless = structs.replace(helped, architecture="gemma3", why="it read all of it again")
    state = after(EngineState(), helped, useless, structs.replace(useless, at=2.0))
    assert state.contexts == (helped, structs.replace(useless, at=2.0))
    assert state.context_trial("d", "llama") == helped
    assert state.context_trial("other", "gemma3") is None
    assert after(state, Forgotten(("d",))).contexts == ()


def test_the_memory_does_not_grow_for_ever() -> None:
    state = EngineState()
    for number in range(MOST_KEPT + 50):
        key = ProofKey(digest=f"d{number}", device="c", driver="", system=SYSTEM)
        state = after(state, Proof(key=key, build="b", device="c", fault=None))
    assert len(state.proofs) == MOST_KEPT
    assert state.proofs[-1].key.digest == f"d{MOST_KEPT + 49}"
    for week in range(50):
        at, seat = week * 2 * FORGOTTEN, f"s{week}"
        died = SeatFailed(build="b", seat=seat, digest="d", model="m", why="it died", at=at, others=True)
        state = after(state, died)
    assert [one.seat for one in state.probations] == ["s49"]


DAY = 86400.0
TIMES = st.floats(0, 4e9)


def failed_again(before: Probation | None, now: float, digest: str = "d", why: str = "it died") -> Probation:
    return after_failure(
        before, SeatFailed(build="b", seat="s", digest=digest, model="m", why=why, at=now, others=True)
    )


@given(TIMES, st.integers(1, 12))
def test_failures_in_a_row_wait_longer_each_time_up_to_a_day(start: float, times_failed: int) -> None:
    one, now, waits = None, start, list[float]()
    for _ in range(times_failed):
        one = failed_again(one, now)
        waits.append(round(one.until - now, 3))
        now = one.until + 1
    assert waits == sorted(waits)
    assert one.failures == times_failed
    assert max(waits) <= max(BACK_OFF)


@given(TIMES, TIMES)
def test_a_clock_that_was_wrong_makes_no_pair_wait_longer(wrong: float, now: float) -> None:
    one = failed_again(None, wrong)
    if one.holds(now):
        assert one.until - now <= BACK_OFF[0] + CLOCK_SLACK


@given(TIMES)
def test_another_build_starts_anew(start: float) -> None:
    again = failed_again(failed_again(failed_again(None, start), start), start)
    assert failed_again(again, start, digest="another").failures == 1
    assert failed_again(again, start).failures == 4


@given(TIMES, st.lists(st.floats(0, 20 * DAY), max_size=8))
def test_only_what_counts_for_the_next_failure_is_kept(now: float, ages: list[float]) -> None:
    for one in [failed_again(None, now - age) for age in ages]:
        assert one.counts(now) == (failed_again(one, now).failures == 2)
