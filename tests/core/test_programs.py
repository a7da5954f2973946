"""core.programs: which version a start leads to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.programs import TrialRun, chosen, failure_of
from appliance.core.versions import TRIAL, BuildLine, StepDone, UpdateBegun, VersionState, reduce

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
