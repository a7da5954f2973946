"""What an update changes about the order of engines, and what follows from failures, removals and choices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.versions import BuildLine, BuildRefused, UpdateBegun
from appliance.errors import Conflict, UsageError
from appliance.features.engines.core.choice import Ranked, arrange, check_removable
from appliance.features.engines.core.listing import Device, cpu_device
from appliance.features.engines.core.standing import ProvenSpeeds, Seat, Standing
from appliance.features.engines.core.state import EngineState, Event, Forgotten, reduce
from appliance.features.engines.core.trials import canary_failure

LINE = "linux-x64-cpu"
REFUSAL = "it answers with garbage"
CPU = cpu_device("A processor", 1 << 34)
GPU = Device(name="Vulkan0", description="A card", total=1 << 33, free=1 << 33)


def build(number: int, line: str = LINE) -> str:
    return f"{line}/b{number}"


def ranked(name: str, standing: Standing = "proven", device: Device = CPU, wanted: bool = False) -> Ranked:
    seat = Seat(build=name, backend="cpu", digest=name, place=0, devices=(device,))
    return Ranked(seat=seat, standing=standing, why="", wanted=wanted)


def after(state: EngineState, *events: Event) -> EngineState:
    for event in events:
        state = reduce(state, event)
    return state


def test_a_refusal_is_forgotten_with_all_results_and_not_with_those_of_one_build() -> None:
    refused = after(EngineState(), UpdateBegun(build=build(2), old=build(1), at=1.0), BuildRefused(REFUSAL, 2.0))
    assert after(refused, Forgotten((build(1),))).refused is not None
    assert after(refused, Forgotten()).refused is None


def test_the_current_build_goes_first_in_its_line_and_leaves_other_lines_alone() -> None:
    order = [ranked(build(1)), ranked("other/b9"), ranked(build(2)), ranked(build(3)), ranked("embedded")]
    assert arrange(order, EngineState()) == order
    state = EngineState(lines=(BuildLine(name=LINE, current=build(3), previous=(build(2),)),))
    names = [one.seat.build for one in arrange(order, state)]
    assert names == [build(3), "other/b9", build(2), build(1), "embedded"]


def test_a_current_build_that_is_not_proven_does_not_go_before_one_that_is() -> None:
    order = [ranked(build(1)), ranked(build(2), "probation")]
    state = EngineState(lines=(BuildLine(name=LINE, current=build(2), previous=(build(1),)),))
    assert arrange(order, state) == order


def test_a_withdrawn_build_goes_behind_everything_that_can_be_used_unless_it_is_asked_for() -> None:
    failed = ranked(build(4), "failed")
    order = [ranked(build(2)), ranked(build(1)), ranked("embedded"), failed]
    state = EngineState(withdrawn={build(2): "it crashed"})
    assert [one.seat.build for one in arrange(order, state)] == [build(1), "embedded", build(2), build(4)]
    asked = [ranked(build(2), wanted=True), *order[1:]]
    assert arrange(asked, state) == asked


@given(
    seats=st.lists(
        st.tuples(
            st.sampled_from([build(1), build(2), build(3), "linux-x64-vulkan/b1", "embedded"]),
            st.sampled_from(["proven", "untried", "probation", "failed", "damaged"]),
            st.sampled_from([CPU, GPU]),
            st.booleans(),
        ),
        unique_by=lambda seat: (seat[0], seat[2].name),
    ),
    current=st.sampled_from([build(1), build(2), build(9)]),
    withdrawn=st.sets(st.sampled_from([build(1), build(3)])),
)
def test_arranging_loses_and_invents_no_seat_and_puts_nothing_unusable_first(
    seats: list[tuple[str, Standing, Device, bool]], current: str, withdrawn: set[str]
) -> None:
    order = sorted((ranked(*seat) for seat in seats), key=lambda one: not one.usable)
    state = EngineState(
        lines=(BuildLine(name=LINE, current=current),), withdrawn=dict.fromkeys(withdrawn - {current}, "no")
    )
    found = arrange(order, state)
    assert sorted(one.seat.id for one in found) == sorted(one.seat.id for one in order)
    assert [one.usable for one in found] == sorted((one.usable for one in found), reverse=True)
    assert arrange(found, state) == found


def test_what_may_be_removed() -> None:
    def check(**told: object) -> None:
        usual: dict[str, object] = {
            "ranked": [ranked(build(1)), ranked(build(2))], "installed": [build(1), build(2)], "wanted": [],
            "running": [], "force": False,
        }  # fmt: skip
        check_removable(build(2), **(usual | told))  # type: ignore[arg-type]

    check()
    check(running=[build(2)], force=True)
    check(ranked=[ranked(build(1), "untried"), ranked(build(2), "probation")])
    for rest in ([], [ranked(build(1), "failed")], [ranked(build(1), "damaged")], [ranked(build(1), "untried")]):
        with pytest.raises(Conflict, match="only engine that is known to work"):
            check(ranked=[ranked(build(2)), *rest], force=True)
    with pytest.raises(Conflict, match="was chosen with"):
        check(wanted=[build(2)])
    with pytest.raises(Conflict, match="--force"):
        check(running=[build(2)])
    with pytest.raises(UsageError, match="installed here"):
        check(installed=[build(1)])


@pytest.mark.parametrize(
    ("prompt", "generation", "taken"),
    [(1000, 100, True), (800, 81, True), (1000, 70, False), (600, 100, True), (100, 100, False), (5000, 70, True)],
)
def test_a_build_that_is_a_fifth_slower_is_not_taken(prompt: float, generation: float, taken: bool) -> None:
    old = ProvenSpeeds(prompt=1000, generation=100)
    new = ProvenSpeeds(prompt=prompt, generation=generation)
    why = canary_failure(old, new)
    assert (why == "") is taken
    assert taken or "% of the speed" in why
