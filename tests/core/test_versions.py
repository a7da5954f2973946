"""An update never leaves a machine without a version that works, whatever instant the program is killed at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.one_file import MAGIC, RECORD, RECORD_NAME, end_of_program
from appliance.core.programs import TrialRun, chosen, failure_of
from appliance.core.versions import (
    KEPT,
    TRIAL,
    BuildFailed,
    BuildLine,
    BuildRefused,
    Journal,
    Restarted,
    RolledBack,
    Step,
    StepDone,
    UpdateBegun,
    VersionEvent,
    VersionState,
    line_of,
    lines_to_roll_back,
    reduce,
)
from appliance.errors import Conflict, UsageError

LINE = "linux-x64-cpu"
REFUSAL = "it answers with garbage"


def build(number: int, line: str = LINE) -> str:
    return f"{line}/b{number}"


class Killed(Exception):
    """The program is gone."""


class Disk(Struct):
    """What survives a kill. Every write costs one of ``life``; the one that cannot be paid for does not happen."""

    placed: set[str]
    staged: set[str]
    state: VersionState
    life: int

    def pay(self) -> None:
        if self.life == 0:
            raise Killed
        self.life -= 1

    def tell(self, event: VersionEvent) -> Journal | None:
        """The state is on the disk before its work begins, as `store.version_file` and `store.shelf` do it."""
        state = reduce(self.state, event)
        if state != self.state:
            self.pay()
            self.state = state
            self.check()
        return state.journal

    def work(self, journal: Journal) -> None:
        match journal.step:
            case "stage":
                self.pay()
                self.staged.add(journal.build)
            case "place":
                if journal.build not in self.placed:
                    self.pay()
                    self.staged.remove(journal.build)
                    self.placed.add(journal.build)
            case "tidy":
                for name in journal.surplus:
                    self.pay()
                    self.placed.discard(name)
                self.pay()
                self.staged.clear()
            case "discard":
                self.pay()
                self.staged.clear()
            case "prove" | "canary":
                pass
        self.check()

    def settle(self, event: VersionEvent) -> None:
        journal = self.tell(event)
        while journal is not None:
            self.work(journal)
            journal = self.tell(StepDone(1.0))

    def check(self) -> None:
        """The build in use is there, whole, and known to work; nothing that is kept is missing."""
        line = self.state.line(LINE)
        assert line.current in self.placed
        assert set(line.previous) <= self.placed


def update(disk: Disk, new: str, *, fails_at: Step | None, now: float) -> None:
    """As `store.updating` does it, with nothing left out."""
    line = disk.state.line(LINE)
    journal = disk.tell(UpdateBegun(build=new, old=line.current, at=now))
    while journal is not None:
        disk.work(journal)
        if journal.step == fails_at:
            disk.settle(BuildRefused(REFUSAL, now))
            return
        journal = disk.tell(StepDone(now))


def restart(disk: Disk) -> None:
    """As `VersionShelf.recover` does it."""
    journal = disk.state.journal
    if journal is not None:
        disk.settle(Restarted(is_there=journal.build in disk.staged | disk.placed))


def after(state: VersionState, *events: VersionEvent) -> VersionState:
    for event in events:
        state = reduce(state, event)
    return state


def failed(build: str, at: float) -> BuildFailed:
    return BuildFailed(build=build, why="it crashed", at=at)


def updated(state: VersionState, new: str, old: str, at: float, held: tuple[str, ...] = ()) -> VersionState:
    """Right after the switch."""
    return after(state, UpdateBegun(build=new, old=old, at=at, held=held), *[StepDone(at)] * 4)


@given(
    updates=st.lists(st.tuples(st.sampled_from([None, "prove", "canary"]), st.integers(0, 14)), min_size=1, max_size=7),
    deaths=st.lists(st.integers(0, 6), max_size=4),
)
def test_after_any_kills_a_start_finds_the_build_in_use_and_nothing_left_over(
    updates: list[tuple[Step | None, int]], deaths: list[int]
) -> None:
    disk = Disk({build(0)}, set(), VersionState(lines=(BuildLine(name=LINE, current=build(0)),)), 0)
    for number, (fails_at, life) in enumerate(updates, 1):
        disk.life = life
        before = disk.state.line(LINE)
        done = True
        try:
            update(disk, build(number), fails_at=fails_at, now=float(number))
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
        assert disk.state.journal is None
        assert not disk.staged
        line = disk.state.line(LINE)
        assert line is not None
        assert before is not None
        good = fails_at is None
        refused = disk.state.refused
        if done:
            remembered = None if good else (build(number), before.current, REFUSAL, float(number))
            assert remembered == (refused and (refused.build, refused.old, refused.why, refused.at))
        assert line.current == (build(number) if done and good else line.current)
        assert line.current in (before.current, build(number) if good else before.current)
        assert disk.placed == {line.current, *line.previous}  # neither more nor fewer
        assert len(line.previous) <= KEPT


def test_an_update_goes_through_its_steps_in_their_order() -> None:
    state = after(VersionState(), UpdateBegun(build=build(2), old=build(1), at=1.0))
    steps: list[Step] = []
    while state.journal is not None:
        steps.append(state.journal.step)
        state = after(state, StepDone(2.0))
    assert steps == ["stage", "prove", "canary", "place", "tidy"]
    assert state == VersionState(lines=(BuildLine(name=LINE, current=build(2), previous=(build(1),), switched_at=2.0),))


def test_a_build_that_comes_back_is_not_before_itself() -> None:
    state = VersionState(lines=(BuildLine(name=LINE, current=build(2), previous=(build(1), build(0))),))
    state = after(updated(state, build(1), build(2), 1.0), *[StepDone(2.0)] * 5)
    line = state.line(LINE)
    assert line is not None
    assert (line.current, line.previous) == (build(1), (build(2), build(0)))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_start_completes_what_had_passed_every_test_and_gives_up_the_rest(is_there: bool) -> None:
    state, told = after(VersionState(), UpdateBegun(build=build(2), old=build(1), at=1.0)), Restarted(is_there=is_there)
    for _ in range(3):  # stage, prove, canary
        assert after(state, told, StepDone(1.0)) == VersionState()
        state = after(state, StepDone(1.0))
    assert after(state, told) == (state if is_there else after(state, BuildRefused()))
    tidying = after(state, StepDone(1.0))
    for event in (told, BuildRefused()):  # an interruption after the switch does not undo it
        assert after(tidying, event) == tidying


def test_what_was_asked_for_by_name_outlives_updates() -> None:
    state = VersionState(lines=(BuildLine(name=LINE, current=build(3), previous=(build(2), build(1))),))
    for held, gone in (((), (build(1),)), ((build(1),), ())):
        journal = updated(state, build(4), build(3), 1.0, held).journal
        assert journal.surplus == gone


def test_two_updates_do_not_begin_at_once() -> None:
    begun = after(VersionState(), UpdateBegun(build=build(2), old=build(1), at=1.0))
    with pytest.raises(Conflict, match="b2"):
        after(begun, UpdateBegun(build=build(3), old=build(1), at=1.0))


def test_a_failure_within_the_first_hour_brings_the_old_build_back_and_later_ones_do_not() -> None:
    state = updated(VersionState(), build(2), build(1), 1000.0)
    assert after(state, failed(build(2), 1000.0 + TRIAL)) == state
    assert after(state, failed(build(1), 1001.0)) == state
    assert after(state, failed("embedded", 1001.0)) == state
    back = after(state, failed(build(2), 1060.0))
    assert back.line(LINE) == BuildLine(name=LINE, current=build(1))
    assert back.role(build(2)) == "withdrawn"
    assert "it failed 60 s after the switch: it crashed" in back.withdrawn[build(2)]
    assert after(back, failed(build(1), 1061.0)) == back  # there is nothing older
    assert back.trusting(build(2)).role(build(2)) == ""


def test_going_back_step_by_step_ends_with_an_error() -> None:
    here = (build(1), build(2), build(3))
    back = RolledBack(kind="cpu", here=here, why="no")
    state = updated(after(updated(VersionState(), build(2), build(1), 1.0), StepDone(1.0)), build(3), build(2), 2.0)
    state = after(state, StepDone(2.0), back)
    assert state.role(build(2)) == "current"
    state = after(state, back)
    assert state.role(build(1)) == "current"
    with pytest.raises(UsageError, match=f"nothing to go back to: no update of {LINE}"):
        reduce(state, back)
    with pytest.raises(UsageError, match="no update of vulkan"):
        reduce(state, RolledBack(kind="vulkan", here=here, why="no"))
    again = updated(state, build(3), build(1), 6.0)
    assert again.role(build(3)) == "current"  # an update to it is a new try
    assert again.role(build(2)) == "withdrawn"


def test_a_build_that_is_returned_to_is_trusted_again() -> None:
    line = BuildLine(name=LINE, current=build(2), previous=(build(1),))
    state = VersionState(lines=(line,), withdrawn={build(1): "it crashed", build(5): "it hung"})
    back = after(state, RolledBack(kind=None, here=(build(1), build(2)), why="no"))
    assert back.role(build(1)) == "current"
    assert back.withdrawn == {build(2): "no", build(5): "it hung"}


def test_there_is_no_way_back_to_a_build_that_is_gone_and_the_latest_update_goes_back_first() -> None:
    line = BuildLine(name=LINE, current=build(3), previous=(build(2), build(1)), switched_at=1.0)
    other = BuildLine(name="linux-x64-vulkan", current="linux-x64-vulkan/b2", switched_at=2.0)
    state, here = VersionState(lines=(other, line)), (build(1), build(3))
    left = BuildLine(name=LINE, current=build(3), previous=(build(1),), switched_at=1.0)
    assert lines_to_roll_back(state, None, here) == [left, other]
    assert lines_to_roll_back(state, "cpu", here) == [left]
    back = after(state, RolledBack(kind="cpu", here=here, why="no"))
    assert back.line(LINE) == BuildLine(name=LINE, current=build(1))


def test_a_removed_build_leaves_the_history() -> None:
    state = after(updated(VersionState(), build(2), build(1), 5.0), StepDone(5.0))
    assert state.without_build(build(1)).line(LINE) == BuildLine(name=LINE, current=build(2), switched_at=5.0)
    assert state.without_build(build(2)).line(LINE) == BuildLine(name=LINE, current=build(1))
    assert state.without_build(build(2)).without_build(build(1)).line(LINE) is None


def test_lines() -> None:
    assert line_of(build(1)) == LINE
    assert line_of("embedded") == "embedded"
    assert line_of("/usr/bin/llama-server") == "/usr/bin/llama-server"


def test_an_interruption_says_nothing_of_a_build() -> None:
    refused = after(VersionState(), UpdateBegun(build=build(2), old=build(1), at=1.0), BuildRefused(REFUSAL, 2.0))
    interrupted = after(refused, StepDone(2.0), UpdateBegun(build=build(3), old=build(1), at=3.0), BuildRefused())
    assert interrupted.refused == refused.refused
    assert (interrupted.refused.build, interrupted.refused.why) == (build(2), REFUSAL)


OLD, NEW = "programs/0.2.0-aaaaaaaaaaaa", "programs/0.3.0-bbbbbbbbbbbb"


def switched(at: float) -> VersionState:
    state = reduce(VersionState(), UpdateBegun(build=NEW, old=OLD, at=at))
    while state.journal is not None:
        state = reduce(state, StepDone(at))
    return state


def test_a_start_leads_to_the_newest_version_that_is_here() -> None:
    state = switched(0)
    assert chosen(state, (OLD, NEW)) == NEW
    assert chosen(state, (OLD,)) == OLD
    assert chosen(state, ()) is None
    assert chosen(VersionState(), (OLD,)) is None


@given(st.integers(-10, int(2 * TRIAL)), st.booleans())
def test_only_a_crash_within_the_first_hour_leads_back(after: int, same_boot: bool) -> None:
    state = switched(1000.0)
    run = TrialRun(program=NEW, pid=1, boot="b", at=1000.0 + after, until=0.0)
    event = failure_of(run, "b" if same_boot else "another")
    if event is not None:
        state = reduce(state, event)
    is_early = 0 <= after < TRIAL
    assert switched(1000.0).trial_end(NEW, run.at) == (1000.0 + TRIAL if is_early else None)
    assert chosen(state, (OLD, NEW)) == (OLD if is_early and same_boot else NEW)
    assert (NEW in state.withdrawn) == (is_early and same_boot)


def test_the_first_version_of_all_has_no_trial() -> None:
    alone = VersionState().with_line(BuildLine(name="programs", current=OLD, switched_at=5.0))
    assert alone.trial_end(OLD, 6.0) is None


NUMBER = st.integers(0, (1 << 64) - 1)
BYTES = st.binary(max_size=40).filter(lambda data: RECORD_NAME[:1] not in data)


@given(BYTES, BYTES, NUMBER, NUMBER)
def test_the_end_is_what_the_record_says(between: bytes, behind: bytes, offset: int, size: int) -> None:
    record = RECORD.pack(RECORD_NAME, b"0.2.0", b"a" * 64, offset, size)
    whole = b"\x7fELF...." + MAGIC + between + record + behind
    assert end_of_program(whole) == offset + size
    cut = len(whole) - len(behind) - 1
    for other in (whole[:cut], whole[1:], whole.replace(RECORD_NAME, b"x" * len(RECORD_NAME))):
        assert end_of_program(other) == 0


@given(st.binary(max_size=300))
def test_any_bytes_have_an_answer(beginning: bytes) -> None:
    assert end_of_program(beginning) >= 0
