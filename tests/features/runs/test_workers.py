"""Slots, the queue and the lock of one model's runs, without a clock."""

from __future__ import annotations

import pytest

from appliance.core.config.additions import RunsConfig
from appliance.errors import NoSlotAvailable, WorkerFailed
from appliance.features.runs.record import ModelRuns

SETTINGS = RunsConfig(slots=2, queue=1, max_restarts=2, restart_window=10)


def test_slots_then_the_queue_then_nothing() -> None:
    worker = ModelRuns("m")
    assert [worker.enter(run, SETTINGS) for run in "abc"] == [True, True, False]
    with pytest.raises(NoSlotAvailable, match="2 runs under way, and 1 wait"):
        worker.enter("d", SETTINGS)
    assert worker.next(2) is None
    worker.leave("a")
    with pytest.raises(NoSlotAvailable):
        worker.enter("d", SETTINGS)  # nobody overtakes who waits
    assert worker.next(2) == "c"
    assert worker.running == {"b", "c"}


def test_who_waits_may_give_up_and_more_slots_let_more_in() -> None:
    worker = ModelRuns("m")
    for run in "abc":
        worker.enter(run, SETTINGS)
    assert worker.next(3) == "c"
    assert worker.next(3) is None
    worker.enter("d", SETTINGS)
    worker.leave("d")
    assert not worker.waiting


def test_restarts_within_the_window_count_and_one_process_counts_once() -> None:
    worker = ModelRuns("m")
    assert [worker.restarted(pid, 1.0, SETTINGS) for pid in (1, 1, 2)] == [False, False, False]
    assert worker.restarts(1.0, 10) == 2
    assert not worker.restarted(3, 11.5, SETTINGS), "the first two are forgotten by then"
    assert not worker.restarted(4, 12.0, SETTINGS)
    assert worker.restarted(5, 13.0, SETTINGS)


@pytest.mark.parametrize(("most", "restarted"), [(2, [False, True, True]), (0, [False, False, False])])
def test_answers_of_no_use_count_in_a_row_and_may_be_unlimited(most: int, restarted: list[bool]) -> None:
    worker, settings = ModelRuns("m"), RunsConfig(max_faults=most)
    assert [worker.faulted(7, settings) for _ in restarted] == restarted
    assert not worker.faulted(8, settings)


def test_a_locked_worker_lets_nobody_in_until_it_is_reset() -> None:
    worker = ModelRuns("m")
    worker.failure = WorkerFailed("m", "it failed 3 times", ("last line",))
    with pytest.raises(WorkerFailed, match=r"POST /api/workers/m/reset(.|\n)*last line"):
        worker.enter("a", SETTINGS)
    worker.reset()
    assert worker.enter("a", SETTINGS)
    assert worker.restarts(0.0, 10) == 0
