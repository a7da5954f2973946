"""Many sockets, one task: everything arrives once and in order, whoever is cancelled, full or gone meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from appliance.platform.poller import RECEIVE_SIZE, Poller, open_poller

PAIRS = 3


@contextmanager
def pairs(count: int) -> Generator[list[tuple[socket.socket, socket.socket]]]:
    """Connected sockets that never block; the second of each is the far end."""
    made = [socket.socketpair() for _ in range(count)]
    for ends in made:
        for end in ends:
            end.setblocking(False)
    try:
        yield made
    finally:
        for ends in made:
            for end in ends:
                end.close()


def watched(poller: Poller) -> int:
    """How many descriptors the system's poller knows."""
    return len(poller._system._heard)  # pyright: ignore[reportPrivateUsage]


async def test_what_arrives_is_heard_to_the_end():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            heard: list[bytes] = []

            def hear(data: bytes) -> bool:
                heard.append(data)
                return True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poller.each, near, hear)
                for word in (b"one", b"two"):
                    await wait_all_tasks_blocked()
                    far.send(word)
                await wait_all_tasks_blocked()
                far.close()
            assert heard == [b"one", b"two", b""]
            assert watched(poller) == 0


async def test_what_hears_may_stop_and_go_on_where_it_was():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            far.send(b"x" * 10)
            heard: list[bytes] = []

            def hear(data: bytes) -> bool:
                heard.append(data)
                return False

            await poller.each(near, hear)
            far.send(b"y")
            await wait_all_tasks_blocked()
            assert heard == [b"x" * 10]
            await poller.each(near, hear)
            assert heard == [b"x" * 10, b"y"]


async def test_what_it_raises_is_raised_where_it_is_waited_for():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            far.send(b"x")

            def hear(data: bytes) -> bool:
                raise KeyError(data)

            with pytest.raises(KeyError):
                await poller.each(near, hear)
            assert watched(poller) == 0


async def test_a_broken_connection_is_an_os_error():
    async with open_poller() as poller:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.create_connection(listener.getsockname()) as near:
            far, _ = listener.accept()
            near.setblocking(False)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            with pytest.raises(ConnectionResetError):
                await poller.each(near, lambda data: True)


async def test_a_flood_on_one_socket_holds_up_no_other_task():
    async with open_poller() as poller:
        with pairs(2) as [(near, far), (calm, calm_far)]:
            taken = 0
            turns = 0

            def hear(data: bytes) -> bool:
                nonlocal taken
                taken += len(data)
                far.send(b"x" * RECEIVE_SIZE)  # there is always more
                return True

            async def other() -> None:
                nonlocal turns
                calm_far.send(b"hello")
                await poller.each(calm, lambda data: False)
                for turns in range(50):  # noqa: B007
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

            far.send(b"x")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poller.each, near, hear)
                nursery.start_soon(other)
            assert turns == 49
            assert taken < 50 * 16 * RECEIVE_SIZE


async def test_the_other_side_leaving_is_told_once_and_in_front_of_unread_bytes():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            told: list[str] = []
            poller.left(near, lambda: told.append("left"))
            far.send(b"a request that nobody reads yet")
            await wait_all_tasks_blocked()
            assert told == []
            far.shutdown(socket.SHUT_WR)
            for _ in range(3):
                await wait_all_tasks_blocked()
            assert told == ["left"]
            poller.forget(near)
            poller.forget(near)
            assert watched(poller) == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(("send", "close", "cancel", "stop", "wait", "wait")), st.integers(0, PAIRS - 1)),
    max_size=30,
)


@given(steps=STEPS)
async def test_any_order_of_events(steps: list[tuple[str, int]]):
    """A waiter gets everything that its far end sent while it waited, in order, and ends for one reason of three."""
    async with open_poller() as poller:
        with pairs(PAIRS) as made:
            sent = [bytearray() for _ in made]
            got = [bytearray() for _ in made]
            stopping = [False] * PAIRS
            ends: list[str | None] = [None] * PAIRS
            scopes = [trio.CancelScope() for _ in made]

            async def wait(number: int) -> None:
                def hear(data: bytes) -> bool:
                    assert ends[number] is None
                    got[number].extend(data)
                    return not stopping[number]

                with scopes[number]:
                    await poller.each(made[number][0], hear)
                    ends[number] = "stopped" if stopping[number] else "closed"
                if scopes[number].cancelled_caught:
                    ends[number] = "cancelled"

            async with trio.open_nursery() as nursery:
                for number in range(PAIRS):
                    nursery.start_soon(wait, number)
                await wait_all_tasks_blocked()
                closed = [False] * PAIRS
                for step, number in steps:
                    far = made[number][1]
                    if step == "send" and not closed[number]:
                        piece = bytes([len(sent[number]) % 256]) * 3
                        far.send(piece)
                        if ends[number] is None:
                            sent[number] += piece
                    elif step == "close" and not closed[number]:
                        far.close()
                        closed[number] = True
                    elif step == "cancel":
                        scopes[number].cancel()
                    elif step == "stop":
                        stopping[number] = True
                    else:
                        await wait_all_tasks_blocked()
                await wait_all_tasks_blocked()
                for number in range(PAIRS):
                    assert bytes(sent[number]).startswith(bytes(got[number]))
                    if ends[number] is None:
                        assert got[number] == sent[number]
                alive = sum(end is None for end in ends)
                assert watched(poller) == alive
                nursery.cancel_scope.cancel()
            assert watched(poller) == 0
