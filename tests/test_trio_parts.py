"""A change wakes everybody who waits at that moment, and nobody else."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from appliance.trio_parts import Changed


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
