"""The small parts that Trio does not have."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.trio_parts import (
    SETTLED,
    WATCH_EVERY,
    BackOff,
    Changed,
    WriteBehind,
    beside,
    every,
    plain_nursery,
    wait_any,
    watch,
)


async def test_a_change_wakes_all_who_wait_and_those_who_come_later_wait_for_the_next() -> None:
    changed, woken = Changed(), list[str]()

    async def wait(name: str) -> None:
        await changed.wait()
        woken.append(name)

    changed.wake()  # before anybody waits: forgotten
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a")
        nursery.start_soon(wait, "b")
        await wait_all_tasks_blocked()
        assert woken == []
        changed.wake()
        nursery.start_soon(wait, "late")
        await wait_all_tasks_blocked()
        assert sorted(woken) == ["a", "b"]
        changed.wake()
    assert woken[2:] == ["late"]


async def fail(error: Exception) -> None:
    raise error


async def nested(error: Exception, *tasks: Exception) -> None:
    """Raise ``error`` within two nurseries, of which one has tasks that fail."""
    async with plain_nursery() as outer, plain_nursery() as inner:
        outer.start_soon(trio.sleep_forever)
        for task in tasks:
            inner.start_soon(fail, task)
        raise error


async def test_one_exception_leaves_a_plain_nursery_as_itself_and_several_as_a_group() -> None:
    with pytest.raises(KeyError, match="mine") as caught:
        await nested(KeyError("mine"))
    assert caught.value.__context__ is None
    with pytest.raises(KeyError, match="its own"):
        async with plain_nursery() as nursery:
            nursery.start_soon(fail, KeyError("its own"))
    with pytest.RaisesGroup(KeyError, ValueError, flatten_subgroups=True):
        await nested(KeyError("a"), ValueError("b"))


async def cancelled_within(scope: trio.CancelScope) -> None:
    scope.cancel()
    await nested(KeyError("mine"))


async def test_an_exception_goes_before_cancelling_and_cancelling_alone_stays_what_it_is() -> None:
    with trio.CancelScope() as scope, pytest.raises(KeyError):
        await cancelled_within(scope)
    seen: list[BaseException] = []
    with trio.move_on_after(0) as scope:
        try:
            async with plain_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
        except trio.Cancelled as cancelled:
            seen.append(cancelled)
            raise
    assert scope.cancelled_caught
    assert len(seen) == 1, "what handles cancelling need not know of groups"


async def test_what_runs_beside_a_block_ends_with_it_and_its_failure_ends_the_block() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("work")

    async with beside(work) as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        assert ended == []
    assert ended == ["work", "work"]
    with pytest.raises(KeyError, match="mine"):
        async with beside(work):
            await fail(KeyError("mine"))
    with pytest.raises(KeyError, match="task's"):
        async with beside(lambda: fail(KeyError("task's"))):
            await trio.sleep_forever()


async def test_the_first_to_end_ends_the_wait(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    await wait_any(trio.sleep_forever, partial(trio.sleep, 3), partial(trio.sleep, 5))
    assert trio.current_time() == began + 3


async def test_a_sign_of_life_is_given_every_so_many_seconds(autojump_clock: MockClock) -> None:
    began, given = trio.current_time(), list[float]()

    async def give() -> None:
        await trio.sleep(1)
        given.append(trio.current_time() - began)

    with trio.move_on_after(10):
        await every(2, lambda: given.append(trio.current_time() - began))
    assert given == [2, 4, 6, 8]
    given.clear()
    began = trio.current_time()
    with trio.move_on_after(10):
        await every(2, give)
    assert given == [3, 6, 9]


async def test_each_death_in_a_row_waits_longer_and_a_long_life_begins_anew(autojump_clock: MockClock) -> None:
    back_off, pauses = BackOff(), list[float]()
    for lived in (0.0, 0.0, BackOff.LIVED, *[0.0] * 5, BackOff.LIVED + 1, 0.0):
        await trio.sleep(lived)
        pauses.append(back_off.pause())
        await trio.sleep(pauses[-1])
    assert pauses == [*BackOff.PAUSES, BackOff.PAUSES[-1], BackOff.PAUSES[-1], *BackOff.PAUSES[:2]]


async def test_a_change_counts_once_it_has_stayed_for_a_while(autojump_clock: MockClock) -> None:
    there: list[str | None] = ["first"]
    seen: list[str | None] = []

    async def look() -> str | None:
        return there[0]

    async def act() -> None:
        seen.append(there[0])

    async with beside(lambda: watch(look, act, seen="first")):
        await trio.sleep(2 * WATCH_EVERY)
        assert seen == []  # it is what was known
        for half in ("a", "ab", "abc", "abcd"):  # it is being written
            there[0] = half
            await trio.sleep(WATCH_EVERY - SETTLED / 2 if half == "a" else SETTLED * 0.9)
        assert "ab" not in seen
        assert "abc" not in seen
        await trio.sleep(2 * WATCH_EVERY)
        assert seen[-1] == "abcd"
        told = len(seen)
        there[0] = None  # it is away, and then there again as it was
        await trio.sleep(2 * WATCH_EVERY)
        there[0] = "abcd"
        await trio.sleep(2 * WATCH_EVERY)
        assert len(seen) == told
        there[0] = "other"
        await trio.sleep(WATCH_EVERY + 2 * SETTLED)
        assert seen[told:] == ["other"]


TIMES = st.lists(st.integers(0, 100), max_size=12).map(sorted)


@given(TIMES, st.lists(st.sampled_from((True, False, OSError)), max_size=6))
def test_what_waits_is_written_soon_once_and_again_where_that_failed(
    wakes: list[int], outcomes: list[bool | type[OSError]]
) -> None:
    """Waking at any times, with writes that fail at first, under a clock that jumps; times in tenths of ``pause``."""
    pause, retry = 10, 30
    behind, writes = WriteBehind(pause=pause, retry=retry), list[tuple[float, bool]]()
    failing = iter(outcomes)

    async def write() -> bool:
        outcome = next(failing, True)
        writes.append((trio.current_time(), outcome is True))
        if not isinstance(outcome, bool):
            raise outcome
        return outcome

    async def run() -> None:
        while True:
            with contextlib.suppress(OSError):
                await behind.run(write)

    async def main() -> None:
        async with beside(run):
            start = trio.current_time()
            for at in wakes:
                await trio.sleep_until(start + at)
                behind.wake()
            await trio.sleep(pause + (pause + retry) * len(outcomes) + 1)
        writes[:] = [(at - start, written) for at, written in writes]

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert all(later - earlier >= pause for (earlier, _), (later, _) in pairwise(writes))
    for at in wakes:
        first = next(when for when, _ in writes if when >= at)
        assert first <= at + pause + retry * (False in [written for when, written in writes if when < first])
    assert not writes or writes[-1][1]
    assert len(writes) <= len(wakes) + len(outcomes)


async def test_the_last_work_has_its_turn_and_its_time() -> None:
    behind, blocked = WriteBehind(flush=0.05), threading.Event()
    assert await behind.finish(lambda: "written") == "written"
    assert await behind.finish(blocked.wait) is None
    blocked.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await behind.finish(lambda: "written") == "written"
