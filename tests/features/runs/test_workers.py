"""Slots, the queue and the lock of one model's runs; the list of runs, and their records on disk."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct
from waiting import until

from appliance.core.config.additions import RunsConfig
from appliance.core.turns.messages import RunState
from appliance.errors import BadRequest, NoSlotAvailable, UsageError, WorkerFailed
from appliance.features.runs.record import ModelRuns
from appliance.features.runs.rules import MAX_PROMPT, STATES, RunQuery, parse_run_query, prompt_of, select_runs
from appliance.features.runs.store import open_run_store
from appliance.store.activity import open_activity

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


MODELS = ("a", "b", "c")


class Listed(Struct, frozen=True):
    id: str
    model: str
    state: RunState


LISTS = st.lists(
    st.tuples(st.sampled_from(MODELS), st.sampled_from(STATES)), max_size=12
).map(lambda found: [Listed(f"run_{at}", *each) for at, each in enumerate(found)])  # fmt: skip
FILTERS = {name: st.lists(st.sampled_from(of), max_size=2) for name, of in (("model", MODELS), ("state", STATES))}
QUERIES = st.fixed_dictionaries({}, optional=FILTERS)
CONTENTS = st.text() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=2)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("system", "user", "assistant", "tool")), "content": CONTENTS})
    | st.just({"role": "assistant", "content": ""}),
    max_size=5,
)


@given(LISTS, QUERIES, st.integers(1, 4))
def test_pages_together_are_the_list_in_its_order(runs: list[Listed], asked: dict[str, list[str]], limit: int):
    models, states = asked.get("model") or MODELS, asked.get("state") or STATES
    wanted = [run for run in runs if run.model in models and run.state in states]
    assert select_runs(parse_run_query(asked), runs) == wanted
    found: list[Listed] = []
    while True:
        page = {**asked, "limit": [str(limit)], "before": [found[-1].id if found else ""]}
        read = select_runs(parse_run_query(page), runs)
        assert len(read) <= limit
        found += read
        if len(read) < limit:
            break
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [("state", "done", "completed, failed"), ("limit", "0", "at least 1"), ("limit", "x", "whole number")],
)
def test_a_parameter_that_cannot_be_used_is_named(name: str, text: str, told: str):
    with pytest.raises(BadRequest, match=told) as refused:
        parse_run_query({name: [text]})
    assert refused.value.param == name


def test_a_run_that_is_forgotten_does_not_begin_a_page():
    with pytest.raises(BadRequest, match="before: there is no run 'run_9'"):
        select_runs(RunQuery(before="run_9"), [Listed("run_1", "a", "failed")])


@given(MESSAGES)
def test_a_prompt_is_the_beginning_of_what_the_user_said_last(messages: list[dict[str, object]]):
    found = prompt_of([Raw(json.dumps(message).encode()) for message in messages])
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert len(found) <= MAX_PROMPT
    if not asked or not asked[-1]:
        assert found == ""
    elif isinstance(asked[-1], str):
        assert asked[-1].strip().startswith(found)
        assert bool(found) == bool(asked[-1].strip())


def test_of_a_question_in_parts_the_first_text_counts():
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": " What is this? "}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]
    assert prompt_of([Raw(json.dumps(message).encode()) for message in messages]) == "What is this?"


async def stored(path: Path) -> list[bytes]:
    async with open_run_store(path) as store:
        return store.stored


async def test_the_newest_record_of_each_run_stays_and_forgotten_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with trio.CancelScope() as scope:  # what waits is written even then
        async with open_activity(path, 10), open_run_store(path) as store:
            for n in range(50):
                store.save("a", 1.0, b"a%d" % n)
            store.save("b", 0.5, b"b")
            store.save("c", 2.0, b"c")
            store.forget("c")
            scope.cancel()
    assert await stored(path) == [b"b", b"a49"]


async def test_a_locked_file_is_waited_for_without_holding_anybody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.sqlite"
    with trio.fail_after(30):
        async with open_run_store(path) as store:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                store.save("a", 1.0, b"first")
                await until(lambda: "cannot be written" in caplog.text)
                store.save("a", 1.0, b"second")
                other.execute("ROLLBACK")
    assert await stored(path) == [b"second"]


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    mover = "robocopy" if sys.platform == "win32" else "mkdir"
    with pytest.raises(UsageError, match=f"set it aside: {mover}"):
        await stored(path)
