"""One task that watches many sockets, and calls a plain function for each that has news.

A chunk of a stream that is waited for by a task of its own costs a task switch, a change of Trio's poller and a
checkpoint: some 7 us, which is more than receiving and looking at it. Here one task waits for a poller of its own
(epoll, kqueue) by its file descriptor, and takes what all sockets have in one turn.

Invariants. A descriptor has one watch at most. A watch hears nothing after `Poller.forget`, which whoever closes the
descriptor calls before. `Poller.each` parks its task while, and only while, its descriptor is watched: the same
function that ends the watch wakes the task, so a task is woken once. A function that hears news never waits.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import outcome
import trio

RECEIVE_SIZE = 1 << 16
TURN = 256
"""Sockets looked at at once; each is received from once."""
LOOK_EVERY = 0.5
"""Seconds between two looks whether the other side has left, on systems that cannot tell by themselves."""
ROUNDS = 4
"""Looks for more news before other tasks have their turn."""

Heard = Callable[[], None]


class Socket(Protocol):
    """As much of a socket as is used here; one of `socket.socket`, or one with TLS on it."""

    def fileno(self) -> int: ...

    def recv(self, size: int, flags: int = 0, /) -> bytes: ...


class Poller:
    """Made by `open_poller`. Every method that is not async is atomic."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._system = _System(nursery)

    def readable(self, sock: Socket, heard: Heard) -> None:
        """Call ``heard`` whenever something can be received, until `forget`."""
        self._system.readable(sock, heard)

    def left(self, sock: Socket, heard: Heard) -> None:
        """Call ``heard`` once when the other side has closed its end, whatever it sent before; until `forget`."""
        self._system.left(sock, heard)

    def forget(self, sock: Socket) -> None:
        """End the watch, before the socket is closed. Nothing happens where there is none."""
        self._system.forget(sock.fileno())

    async def each(self, sock: Socket, heard: Callable[[bytes], bool]) -> None:
        """Call ``heard`` with everything that arrives, b"" at the end, until it returns False.

        The bytes of one call are at most RECEIVE_SIZE. Raises OSError when the connection breaks, and what ``heard``
        raises.
        """
        task = trio.lowlevel.current_task()

        def take() -> None:
            try:
                data = sock.recv(RECEIVE_SIZE)
                if heard(data) and data:
                    return
            except BlockingIOError:
                return
            except Exception as error:  # noqa: BLE001  it is raised in the task that waits
                end: outcome.Outcome[None] = outcome.Error(error)
            else:
                end = outcome.Value(None)
            self.forget(sock)
            trio.lowlevel.reschedule(task, end)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self.forget(sock)
            return trio.lowlevel.Abort.SUCCEEDED

        self.readable(sock, take)
        await trio.lowlevel.wait_task_rescheduled(abort)

    async def run(self) -> None:
        """Hear of news until cancelled; run by `open_poller`."""
        await self._system.run()


@asynccontextmanager
async def open_poller() -> AsyncGenerator[Poller]:
    """Own the task. Nothing may be watched any more when the block is left."""
    async with trio.open_nursery() as nursery:
        poller = Poller(nursery)
        nursery.start_soon(poller.run)
        yield poller
        nursery.cancel_scope.cancel()


if sys.platform == "linux" or sys.platform == "darwin":

    class _Polled:
        """The common part of epoll and kqueue."""

        def __init__(self, _: trio.Nursery) -> None:
            self._heard: dict[int, Heard] = {}

        async def take_turns(self, fd: int, poll: Callable[[], list[tuple[int, int]]]) -> None:
            """``poll`` gives descriptors with news, each with something that nobody looks at here."""
            heard = self._heard
            while True:
                await trio.lowlevel.wait_readable(fd)
                for _ in range(ROUNDS):
                    ready = poll()
                    for each, _ in ready:
                        if (tell := heard.get(each)) is not None:
                            tell()
                    if len(ready) < 2:
                        break  # one alone has no company that comes a moment later


if sys.platform == "linux":
    _READABLE = select.EPOLLIN | select.EPOLLRDHUP
    _LEFT = select.EPOLLRDHUP | select.EPOLLET

    class _System(_Polled):
        """epoll(7)."""

        def __init__(self, nursery: trio.Nursery) -> None:
            super().__init__(nursery)
            self._epoll = select.epoll()

        def readable(self, sock: Socket, heard: Heard) -> None:
            self._watch(sock.fileno(), heard, _READABLE)

        def left(self, sock: Socket, heard: Heard) -> None:
            self._watch(sock.fileno(), heard, _LEFT)

        def forget(self, fd: int) -> None:
            if self._heard.pop(fd, None) is not None:
                self._epoll.unregister(fd)

        async def run(self) -> None:
            with self._epoll:
                await self.take_turns(self._epoll.fileno(), partial(self._epoll.poll, 0, TURN))

        def _watch(self, fd: int, heard: Heard, events: int) -> None:
            self._epoll.register(fd, events)
            self._heard[fd] = heard

elif sys.platform == "darwin":

    class _System(_Polled):
        """kqueue(2), which tells of what arrives and of the end with one kind of event."""

        def __init__(self, nursery: trio.Nursery) -> None:
            super().__init__(nursery)
            self._kqueue = select.kqueue()
            self._only_end: set[int] = set()

        def readable(self, sock: Socket, heard: Heard) -> None:
            self._change(sock.fileno(), select.KQ_EV_ADD)
            self._heard[sock.fileno()] = heard

        def left(self, sock: Socket, heard: Heard) -> None:
            self._change(sock.fileno(), select.KQ_EV_ADD | select.KQ_EV_CLEAR)
            self._heard[sock.fileno()] = heard
            self._only_end.add(sock.fileno())

        def forget(self, fd: int) -> None:
            if self._heard.pop(fd, None) is not None:
                self._only_end.discard(fd)
                self._change(fd, select.KQ_EV_DELETE)

        async def run(self) -> None:
            try:
                await self.take_turns(self._kqueue.fileno(), self._poll)
            finally:
                self._kqueue.close()

        def _poll(self) -> list[tuple[int, int]]:
            ready = self._kqueue.control(None, TURN, 0)
            news = [(one.ident, one.flags) for one in ready]
            return [(fd, flags) for fd, flags in news if fd not in self._only_end or flags & select.KQ_EV_EOF]

        def _change(self, fd: int, flags: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)

else:

    class _System:
        """A task for each watch, where the system has no poller that can be waited for."""

        def __init__(self, nursery: trio.Nursery) -> None:
            self._nursery = nursery
            self._watches: dict[int, trio.CancelScope] = {}

        def readable(self, sock: Socket, heard: Heard) -> None:
            self._start(sock, partial(self._tell, sock, heard))

        def left(self, sock: Socket, heard: Heard) -> None:
            self._start(sock, partial(self._look, sock, heard))

        def forget(self, fd: int) -> None:
            if (scope := self._watches.pop(fd, None)) is not None:
                scope.cancel()

        async def run(self) -> None:
            await trio.sleep_forever()

        def _start(self, sock: Socket, watch: Callable[[], Awaitable[None]]) -> None:
            scope = self._watches[sock.fileno()] = trio.CancelScope()
            self._nursery.start_soon(self._in_scope, scope, watch)

        async def _in_scope(self, scope: trio.CancelScope, watch: Callable[[], Awaitable[None]]) -> None:
            with scope:
                await watch()

        async def _tell(self, sock: Socket, heard: Heard) -> None:
            while True:
                await trio.lowlevel.wait_readable(sock)
                heard()

        async def _look(self, sock: Socket, heard: Heard) -> None:
            while not has_left(sock):  # noqa: ASYNC110  nothing here tells of it
                await trio.sleep(LOOK_EVERY)
            heard()


def has_left(sock: Socket) -> bool:
    """True if the other side has closed its end and everything that it sent before has been received."""
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
