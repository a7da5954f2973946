"""The small parts that Trio does not have."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from appliance.trio_parts import Changed, plain_nursery


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


async def test_who_stopped_waiting_takes_no_wake_up_from_others() -> None:
    changed = Changed()
    with trio.move_on_after(0) as given_up:
        await changed.wait()
    assert given_up.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changed.wait)
        await wait_all_tasks_blocked()
        changed.wake()
        changed.wake()


async def fail(error: Exception) -> None:
    raise error


async def nested(error: Exception, *tasks: Exception) -> None:
    """Raise ``error`` within two nurseries, of which one has tasks that fail."""
    async with plain_nursery() as outer, plain_nursery() as inner:
        outer.start_soon(trio.sleep_forever)
        for task in tasks:
            inner.start_soon(fail, task)
        raise error


async def test_an_exception_of_the_block_leaves_a_plain_nursery_as_itself_and_cancels_its_tasks() -> None:
    with pytest.raises(KeyError, match="mine") as caught:
        await nested(KeyError("mine"))
    assert caught.value.__context__ is None


async def test_an_exception_of_a_task_leaves_a_plain_nursery_as_itself() -> None:
    async def wait() -> None:
        async with plain_nursery() as nursery:
            nursery.start_soon(fail, KeyError("its own"))
            await trio.sleep_forever()

    with pytest.raises(KeyError, match="its own"):
        await wait()


async def test_several_exceptions_leave_a_plain_nursery_as_a_group() -> None:
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
