"""An update never leaves a machine without a build that works, whatever instant the program is killed at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from appliance.core.engines.changes import (
    KEPT,
    TRIAL,
    Changes,
    Line,
    arrange,
    check_removable,
    line_of,
    on_failure,
    rolled_back,
    switched,
    trusted,
)
from appliance.core.engines.choice import Ranked, Seat, Standing
from appliance.core.engines.devices import Device, cpu_device
from appliance.core.engines.speeds import Speeds
from appliance.core.engines.update import (
    Discard,
    Effect,
    Note,
    Place,
    Remove,
    advance,
    begin,
    canary_failure,
    given_up,
    recover,
)
from appliance.errors import Conflict, UsageError

LINE = "linux-x64-cpu"
CPU = cpu_device("A processor", 1 << 34)
GPU = Device(name="Vulkan0", description="A card", total=1 << 33, free=1 << 33)


def build(number: int, line: str = LINE) -> str:
    return f"{line}/b{number}"


def ranked(name: str, standing: Standing = "proven", device: Device = CPU, wanted: bool = False) -> Ranked:
    seat = Seat(build=name, backend="cpu", digest=name, place=0, devices=(device,))
    return Ranked(seat=seat, standing=standing, why="", wanted=wanted)


class Killed(Exception):
    """The program is gone."""


class Disk(Struct):
    """What survives a kill. Every write costs one of ``life``; the one that cannot be paid for does not happen."""

    placed: set[str]
    staged: set[str]
    changes: Changes
    life: int

    def pay(self) -> None:
        if self.life == 0:
            raise Killed
        self.life -= 1

    def note(self, changes: Changes) -> None:
        self.pay()
        self.changes = changes
        self.check()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Discard():
                    self.pay()
                    self.staged.clear()
                case Place(name):
                    self.pay()
                    self.staged.remove(name)
                    self.placed.add(name)
                case Remove(builds):
                    for name in builds:
                        self.pay()
                        self.placed.discard(name)
                case Note(changes):
                    self.note(changes)
            self.check()

    def check(self) -> None:
        """The build in use is there, whole, and known to work; nothing that is kept is missing."""
        line = self.changes.line(LINE)
        assert line is not None
        assert line.current in self.placed
        assert set(line.previous) <= self.placed


def update(disk: Disk, new: str, *, good: bool, now: float) -> None:
    """The order in which `engines.updating` does it."""
    line = disk.changes.line(LINE)
    assert line is not None
    disk.note(begin(disk.changes, new, line.current, now))
    disk.pay()
    disk.staged.add(new)
    disk.note(advance(disk.changes, now))  # prove
    disk.note(advance(disk.changes, now))  # canary
    if not good:
        disk.carry_out([Discard(), Note(given_up(disk.changes))])
        return
    disk.note(advance(disk.changes, now))  # place
    disk.carry_out([Place(new)])
    disk.note(advance(disk.changes, now))  # switched
    journal = disk.changes.journal
    assert journal is not None
    disk.carry_out([Remove(journal.surplus)])
    disk.note(advance(disk.changes, now))


def restart(disk: Disk) -> None:
    disk.carry_out(recover(disk.changes, staged=disk.staged, placed=disk.placed, now=1.0))


@given(
    updates=st.lists(st.tuples(st.booleans(), st.integers(0, 14)), min_size=1, max_size=7),
    deaths=st.lists(st.integers(0, 6), max_size=4),
)
def test_after_any_kills_a_start_finds_the_build_in_use_and_nothing_left_over(
    updates: list[tuple[bool, int]], deaths: list[int]
) -> None:
    disk = Disk({build(0)}, set(), Changes(lines=(Line(name=LINE, current=build(0)),)), 0)
    for number, (good, life) in enumerate(updates, 1):
        disk.life = life
        before = disk.changes.line(LINE)
        done = True
        try:
            update(disk, build(number), good=good, now=float(number))
        except Killed:
            done = False
        for death in deaths:  # and the clearing up is killed as well
            disk.life = death
            try:
                restart(disk)
            except Killed:
                disk.check()
        disk.life = 100
        restart(disk)
        assert disk.changes.journal is None
        assert not disk.staged
        line = disk.changes.line(LINE)
        assert line is not None
        assert before is not None
        assert line.current == (build(number) if done and good else line.current)
        assert line.current in (before.current, build(number) if good else before.current)
        assert disk.placed == {line.current, *line.previous}  # neither more nor fewer
        assert len(line.previous) <= KEPT


def test_recovery_again_does_nothing_more() -> None:
    changes = advance(advance(advance(begin(Changes(), build(2), build(1), 1.0), 1.0), 1.0), 1.0)
    effects = recover(changes, staged=[build(2)], placed=[build(1)], now=2.0)
    assert effects[0] == Place(build(2))
    last = [effect.changes for effect in effects if isinstance(effect, Note)][-1]
    assert last.journal is None
    assert last.line(LINE) == Line(name=LINE, current=build(2), previous=(build(1),), switched_at=2.0)
    assert recover(last, staged=[], placed=[build(1), build(2)], now=3.0) == [Discard()]


def test_an_installation_that_was_cut_short_in_place_of_a_damaged_build_is_brought_to_its_end() -> None:
    effects = recover(Changes(), staged=[build(1), build(2)], placed=[build(2)], now=1.0)
    assert effects == [Place(build(1)), Discard()]


def test_what_was_asked_for_by_name_outlives_updates() -> None:
    changes = Changes(lines=(Line(name=LINE, current=build(3), previous=(build(2), build(1))),))
    for held, gone in (((), (build(1),)), ((build(1),), ())):
        at = begin(changes, build(4), build(3), 1.0, held)
        for _ in range(4):
            at = advance(at, 1.0)
        assert at.journal is not None
        assert at.journal.surplus == gone


def test_two_updates_do_not_begin_at_once() -> None:
    with pytest.raises(Conflict, match="b2"):
        begin(begin(Changes(), build(2), build(1), 1.0), build(3), build(1), 1.0)


def test_a_failure_within_the_first_hour_brings_the_old_build_back_and_later_ones_do_not() -> None:
    changes, _ = switched(Changes(), LINE, build(2), build(1), 1000.0)
    assert on_failure(changes, build(2), "it crashed", 1000.0 + TRIAL) is None
    assert on_failure(changes, build(1), "it crashed", 1001.0) is None
    assert on_failure(changes, "embedded", "it crashed", 1001.0) is None
    back = on_failure(changes, build(2), "it crashed", 1060.0)
    assert back is not None
    assert back.line(LINE) == Line(name=LINE, current=build(1))
    assert back.role(build(2)) == "withdrawn"
    assert "60 s after the switch: it crashed" in back.withdrawn[build(2)]
    assert on_failure(back, build(1), "it crashed", 1061.0) is None  # there is nothing older
    assert trusted(back, build(2)).role(build(2)) == ""


def test_going_back_step_by_step_ends_with_an_error() -> None:
    changes, _ = switched(Changes(), LINE, build(2), build(1), 1.0)
    changes, _ = switched(changes, LINE, build(3), build(2), 2.0)
    changes = rolled_back(changes, LINE, "no", 3.0)
    assert changes.role(build(2)) == "current"
    changes = rolled_back(changes, LINE, "no", 4.0)
    assert changes.role(build(1)) == "current"
    with pytest.raises(UsageError, match="nothing to go back to"):
        rolled_back(changes, LINE, "no", 5.0)
    again, _ = switched(changes, LINE, build(3), build(1), 6.0)
    assert again.role(build(3)) == "current"  # an update to it is a new try
    assert again.role(build(2)) == "withdrawn"


def test_a_removed_build_leaves_the_history() -> None:
    changes, _ = switched(Changes(), LINE, build(2), build(1), 5.0)
    assert changes.without(build(1)).line(LINE) == Line(name=LINE, current=build(2), switched_at=5.0)
    assert changes.without(build(2)).line(LINE) == Line(name=LINE, current=build(1))
    assert changes.without(build(2)).without(build(1)).line(LINE) is None


def test_the_current_build_goes_first_in_its_line_and_leaves_other_lines_alone() -> None:
    order = [ranked(build(1)), ranked("other/b9"), ranked(build(2)), ranked(build(3)), ranked("embedded")]
    assert arrange(order, Changes()) == order
    changes = Changes(lines=(Line(name=LINE, current=build(3), previous=(build(2),)),))
    names = [one.seat.build for one in arrange(order, changes)]
    assert names == [build(3), "other/b9", build(2), build(1), "embedded"]


def test_a_current_build_that_is_not_proven_does_not_go_before_one_that_is() -> None:
    order = [ranked(build(1)), ranked(build(2), "probation")]
    changes = Changes(lines=(Line(name=LINE, current=build(2), previous=(build(1),)),))
    assert arrange(order, changes) == order


def test_a_withdrawn_build_goes_behind_everything_that_can_be_used_unless_it_is_asked_for() -> None:
    failed = ranked(build(4), "failed")
    order = [ranked(build(2)), ranked(build(1)), ranked("embedded"), failed]
    changes = Changes(withdrawn={build(2): "it crashed"})
    assert [one.seat.build for one in arrange(order, changes)] == [build(1), "embedded", build(2), build(4)]
    asked = [ranked(build(2), wanted=True), *order[1:]]
    assert arrange(asked, changes) == asked


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
    changes = Changes(lines=(Line(name=LINE, current=current),), withdrawn=dict.fromkeys(withdrawn - {current}, "no"))
    found = arrange(order, changes)
    assert sorted(one.seat.id for one in found) == sorted(one.seat.id for one in order)
    assert [one.usable for one in found] == sorted((one.usable for one in found), reverse=True)
    assert arrange(found, changes) == found


@pytest.mark.parametrize(
    ("prompt", "generation", "taken"),
    [(1000, 100, True), (800, 81, True), (1000, 70, False), (600, 100, True), (100, 100, False), (5000, 70, True)],
)
def test_a_build_that_is_a_fifth_slower_is_not_taken(prompt: float, generation: float, taken: bool) -> None:
    old = Speeds(prompt=1000, generation=100)
    new = Speeds(prompt=prompt, generation=generation)
    why = canary_failure(old, new)
    assert (why == "") is taken
    assert taken or "% of the speed" in why
    assert canary_failure(None, new) == ""


def test_what_may_be_removed() -> None:
    def check(**told: object) -> None:
        usual: dict[str, object] = {
            "working": [build(1), build(2)], "installed": [build(1), build(2)], "wanted": [], "running": [],
            "force": False,
        }  # fmt: skip
        check_removable(build(2), **(usual | told))  # type: ignore[arg-type]

    check()
    check(running=[build(2)], force=True)
    with pytest.raises(Conflict, match="only engine that is known to work"):
        check(working=[build(2)], force=True)
    with pytest.raises(Conflict, match="was chosen with"):
        check(wanted=[build(2)])
    with pytest.raises(Conflict, match="--force"):
        check(running=[build(2)])
    with pytest.raises(UsageError, match="installed here"):
        check(installed=[build(1)])


def test_lines() -> None:
    assert line_of(build(1)) == LINE
    assert line_of("embedded") == "embedded"
    assert line_of("/usr/bin/llama-server") == "/usr/bin/llama-server"
    assert structs.asdict(Changes()) == {"lines": (), "withdrawn": {}, "journal": None}
