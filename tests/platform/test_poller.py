"""Many sockets, one task: everything arrives once and in order, whoever is cancelled, full or gone meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from appliance.platform.poller import RECEIVE_SIZE, Poller, Receiver, open_poller

PAIRS = 3


@contextmanager
def pairs(count: int) -> Generator[list[tuple[socket.socket, socket.socket]]]:
    """Connected sockets that never block; the second of each is the far end."""
    made = [socket.socketpair() for _ in range(count)]
    with ExitStack() as stack:
        for end in chain.from_iterable(made):
            stack.enter_context(end).setblocking(False)
        yield made


own_poller = pytest.mark.skipif(
    not Poller.listens, reason="Windows has no poller of ours: nobody listens, and an end is looked for twice a second"
)


def watched(poller: Poller) -> int:
    """How many descriptors the system's poller knows."""
    return len(poller.system.receivers) if Poller.listens else 0


@own_poller
async def test_room_to_send_is_told_once_and_beside_what_arrives():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            told: list[str] = []
            heard: list[bytes] = []
            receiver = poller.receiver(near)
            receiver.listen(lambda data: not heard.append(data), lambda: None)
            with suppress(BlockingIOError):
                while True:
                    near.send(b"x" * RECEIVE_SIZE)
            receiver.on_room(lambda: told.append("room"))
            far.send(b"meanwhile")
            await wait_all_tasks_blocked()
            assert (told, heard) == ([], [b"meanwhile"])
            for _ in range(2):
                with suppress(BlockingIOError):
                    while True:
                        far.recv(RECEIVE_SIZE)
                await wait_all_tasks_blocked()
                assert told == ["room"]
                near.send(b"y")
            receiver.close()
            receiver.on_room(lambda: told.append("closed"))
            assert told == ["room"]


@own_poller
async def test_a_listener_with_a_bug_ends_its_own_watch_alone(caplog: pytest.LogCaptureFixture):
    async with open_poller() as poller:
        with pairs(2) as [(near, far), (calm, calm_far)]:
            heard: list[bytes] = []

            def hear(data: bytes) -> bool:
                raise KeyError(data)

            poller.receiver(near).listen(hear, lambda: None)
            receiver = poller.receiver(calm)
            receiver.listen(lambda data: not heard.append(data), lambda: None)
            far.send(b"x")
            await wait_all_tasks_blocked()
            calm_far.send(b"y")
            await wait_all_tasks_blocked()
            assert heard == [b"y"]
            assert watched(poller) == 1
            receiver.close()
    assert "this is a bug" in caplog.text


@pytest.mark.parametrize("listens", [False, pytest.param(True, marks=own_poller)])
async def test_a_broken_connection_is_an_os_error_and_an_end_to_a_listener(listens: bool):
    async with open_poller() as poller:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.create_connection(listener.getsockname()) as near:
            far, _ = listener.accept()
            near.setblocking(False)
            heard: list[bytes] = []
            receiver = poller.receiver(near)
            if listens:
                receiver.listen(lambda data: not heard.append(data), lambda: heard.append(b""))
                far.send(b"half")
                await wait_all_tasks_blocked()
                assert not receiver.broken
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            await wait_all_tasks_blocked()
            assert heard == [b"half", b""] * listens
            assert receiver.broken == listens, "it has been read"
            with pytest.raises(ConnectionResetError):
                await receiver.receive()
            receiver.close()


@own_poller
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
                await calm_receiver.receive()
                for turns in range(50):  # noqa: B007
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

            far.send(b"x")
            receiver, calm_receiver = poller.receiver(near), poller.receiver(calm)
            receiver.listen(hear, lambda: None)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
            receiver.close()
            calm_receiver.close()
            assert turns == 49
            assert taken < 50 * 16 * RECEIVE_SIZE


@own_poller
async def test_the_other_side_leaving_is_told_once_and_in_front_of_unread_bytes():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            told: list[str] = []
            receiver = poller.receiver(near)
            receiver.on_hang_up(lambda: told.append("left"))
            far.send(b"a request that nobody reads yet")
            await wait_all_tasks_blocked()
            assert told == []
            far.shutdown(socket.SHUT_WR)
            for _ in range(3):
                await wait_all_tasks_blocked()
            assert told == ["left"]
            receiver.on_hang_up(lambda: told.append("again"))
            assert told == ["left", "again"]
            assert await receiver.receive() == b"a request that nobody reads yet"
            assert await receiver.receive() == b""
            receiver.close()
            receiver.close()
            assert watched(poller) == 0


async def test_an_interrupted_wait_loses_nothing():
    async with open_poller() as poller:
        with pairs(1) as [(near, far)]:
            receiver = poller.receiver(near)

            async def interrupted() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await receiver.receive()

            assert not receiver.interrupt(), "nobody waits"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(interrupted)
                await wait_all_tasks_blocked()
                far.send(b"late")
                assert receiver.interrupt()
            assert await receiver.receive() == b"late"
            receiver.close()
            with pytest.raises(trio.ClosedResourceError):
                await receiver.receive()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("send", "flood", "close", "cancel", "stop", "follow", "receive", "listen", "silence", "turn", "turn")
        ),
        st.integers(0, PAIRS - 1),
    ),
    max_size=40,
)


class End:
    """One socket with its receiver and at most one task that waits for it."""

    def __init__(self, poller: Poller, near: socket.socket, far: socket.socket) -> None:
        self.receiver = poller.receiver(near)
        self.far = far
        self.sent = bytearray()
        self.got = bytearray()
        self.closed = False
        self.over = False
        self.waits = False
        self.listens = False
        self.stops = False
        self.scope = trio.CancelScope()
        self.left = 0
        self.receiver.on_hang_up(self._leave)

    def _leave(self) -> None:
        self.left += 1

    def listen(self) -> None:
        self.listens, self.stops = True, False
        self.receiver.listen(self.hear, self.end)

    def hear(self, data: bytes) -> bool:
        assert self.listens
        assert data
        self.listens = not self.stops
        self._take(data)
        return self.listens

    def end(self) -> None:
        assert self.listens
        self.listens = False  # and is left for whoever receives

    def stop_listening(self) -> None:
        self.listens = False
        self.receiver.stop_listening()

    def _take(self, data: bytes) -> None:
        assert not self.over, "something came behind the end"
        self.got += data
        self.over = data == b""

    async def wait(self, how: str) -> None:
        self.waits, self.stops, self.scope = True, False, trio.CancelScope()
        with self.scope:
            self._take(await self.receiver.receive())
            while how == "follow" and not (self.over or self.stops):
                self._take(await self.receiver.receive())
        self.waits = False


@own_poller
@given(steps=STEPS)
async def test_any_order_of_events(steps: list[tuple[str, int]]):
    """Whoever waits or listens gets everything that the far end has sent, in order, and then its end."""
    async with open_poller() as poller:
        with pairs(PAIRS) as made:
            ends = [End(poller, near, far) for near, far in made]
            async with trio.open_nursery() as nursery:
                for step, number in steps:
                    end = ends[number]
                    match step:
                        case "send" | "flood" if not end.closed and len(end.sent) < RECEIVE_SIZE:
                            piece = bytes([len(end.sent) % 256]) * (3 if step == "send" else RECEIVE_SIZE + 1)
                            end.sent += piece[: end.far.send(piece)]
                        case "close" if not end.closed:
                            end.far.close()
                            end.closed = True
                        case "cancel":
                            end.scope.cancel()
                        case "stop":
                            end.stops = True
                        case "listen" if not end.waits and not end.over:
                            end.listen()
                        case "silence":
                            end.stop_listening()
                        case "follow" | "receive" if not end.waits and not end.over and not end.listens:
                            end.waits = True  # from now on, though the task may not run in this turn
                            nursery.start_soon(end.wait, step)
                            await trio.lowlevel.checkpoint()
                        case "turn":
                            await wait_all_tasks_blocked()
                        case _:
                            pass
                await wait_all_tasks_blocked()
                for end in ends:
                    assert end.left == end.closed
                    assert end.sent.startswith(end.got)
                    assert not (end.listens and end.closed), "nobody was told of the end"
                    if end.listens:
                        assert end.got == end.sent
                        end.stop_listening()
                    if not end.waits and not end.over:
                        nursery.start_soon(end.wait, "follow")
                await wait_all_tasks_blocked()
                for end in ends:
                    if not end.waits and not end.over:  # it was told to stop, or had waited for one piece
                        nursery.start_soon(end.wait, "follow")
                await wait_all_tasks_blocked()
                for end in ends:
                    assert end.got == end.sent
                    assert end.over == end.closed
                nursery.cancel_scope.cancel()
            assert watched(poller) == PAIRS
            for end in ends:
                end.receiver.close()
            assert watched(poller) == 0


async def test_a_receiver_is_closed_in_order_behind_a_cancelled_poller():
    with pairs(1) as [(near, _)], trio.CancelScope() as scope:
        async with open_poller() as poller:
            receiver = poller.receiver(near)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
                receiver.close()
                assert watched(poller) == 0


@own_poller
async def test_the_end_of_a_turn_comes_behind_all_listeners_and_a_bug_there_hinders_nobody():
    async with open_poller() as poller:
        with pairs(PAIRS) as made:
            said: list[str] = []
            receivers = [poller.receiver(near) for near, _ in made]

            def hear(number: int) -> Callable[[bytes], bool]:
                def heard(_: bytes) -> bool:
                    said.append(f"heard {number}")

                    def last() -> None:
                        said.append(f"left {number}")
                        if number == 0:
                            assert receivers[0].at_turn_end(lambda: said.append("last of all"))
                        if number == 1:
                            raise RuntimeError

                    assert receivers[number].at_turn_end(last)
                    return True

                return heard

            for number, receiver in enumerate(receivers):
                receiver.listen(hear(number), lambda: None)
            assert not receivers[0].at_turn_end(lambda: said.append("never"))
            for _, far in made:
                far.send(b"x")
            await wait_all_tasks_blocked()
            assert [word.split()[0] for word in said] == ["heard"] * PAIRS + ["left"] * PAIRS + ["last"]
            assert not receivers[0].at_turn_end(lambda: said.append("never"))
            for receiver in receivers:
                receiver.close()


@own_poller
async def test_news_of_a_closed_socket_is_not_told_to_one_that_got_its_number_in_the_same_turn():
    async with open_poller() as poller:
        with pairs(3) as [(first, far_first), (second, far_second), (third, _)]:
            ends: list[str] = []
            made: list[Receiver] = []
            receivers = {first: poller.receiver(first), second: poller.receiver(second)}

            def take_the_number_of(other: socket.socket) -> Callable[[], None]:
                def ended() -> None:
                    ends.append("old")
                    if not made:
                        receivers[other].close()
                        os.dup2(third.fileno(), other.fileno())
                        made.append(poller.receiver(other))
                        made[0].on_hang_up(lambda: ends.append("new"))

                return ended

            receivers[first].listen(lambda _: True, take_the_number_of(second))
            receivers[second].listen(lambda _: True, take_the_number_of(first))
            far_first.close()
            far_second.close()
            await wait_all_tasks_blocked()
            assert ends == ["old"]
            for receiver in (*receivers.values(), *made):
                receiver.close()
