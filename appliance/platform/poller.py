"""One task that watches many sockets, and wakes the task or calls the function that waits for each.

Waiting for a socket with Trio costs two changes of its poller, a look in vain and some 10 us for each wait; and a task
of its own for each chunk of a stream costs a task switch as well, which is more than receiving the chunk and looking at
it. Here a socket is made known once to a poller of our own (epoll, kqueue; edge-triggered), for as long as it is open.
One task waits for that poller by its file descriptor and receives from every socket that has news.

Invariants. A descriptor has one `Receiver` at most. It gets nothing after `Receiver.close`, and its owner calls that
before it closes the descriptor. Either one task waits for the next bytes, in `receive`, or between `listen` and
`stop_listening` a callback gets them. A task is parked while, and only while, the receiver names it, and whatever wakes
it takes the name away first; so it is woken once. A callback never waits.

The poller reports an edge once. ``_news`` therefore says that something may be left to receive. Code that stops before
the socket is empty sets it, or arms the poller again.
"""

from __future__ import annotations

import logging
import select
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Protocol

import outcome
import trio

RECEIVE_SIZE = 96 << 10
"""A request with a picture of 64 KiB fits. From 128 KiB on, glibc maps memory anew for each piece."""
USUAL_SIZE = 16 << 10
"""The same for a listener to whom nothing longer has come yet: to make room for less costs less."""
TURN = 64
"""Sockets looked at at once; each is received from once. A request that is carried costs some 50 us in it."""
LOOK_EVERY = 0.5
"""Seconds between two looks whether the other side has left, on systems that cannot tell by themselves."""
ROUNDS = 4
"""Looks for more news before other tasks have their turn, unless it took SHARE already."""
SHARE = 0.004
"""Seconds."""

log = logging.getLogger(__name__)

OnData = Callable[[bytes], bool]
Callback = Callable[[], object]


class Socket(Protocol):
    """As much of a socket as is used here; one of `socket.socket`, or one with TLS on it."""

    def fileno(self) -> int: ...

    def recv(self, size: int, flags: int = 0, /) -> bytes: ...


class Poller:
    """Made by `open_poller`."""

    listens = sys.platform in ("linux", "darwin")
    """Receivers can `Receiver.listen`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.system = _System(nursery)

    def receiver(self, sock: Socket, *, eager: bool = False) -> Receiver:
        """Watch a socket that never blocks, until `Receiver.close`. ``eager``: something is probably there."""
        return Receiver(sock, self.system, eager=eager)


@asynccontextmanager
async def open_poller() -> AsyncGenerator[Poller]:
    """Own the task. No receiver may be open any more when the block is left.

    Where the block is cancelled, the task ends first: others still close their receivers after it.
    """
    with ExitStack() as last:
        async with trio.open_nursery() as nursery:
            poller = Poller(nursery)
            last.callback(poller.system.close)
            nursery.start_soon(poller.system.run)
            yield poller
            nursery.cancel_scope.cancel()


if sys.platform == "linux" or sys.platform == "darwin":

    class Receiver:
        """The receiving side of one socket, until `close`. One task waits for it at a time.

        Every method but `receive` is atomic. The socket itself belongs to the maker of the receiver.
        """

        __slots__ = (
            "_broken",
            "_ended",
            "_exact",
            "_fd",
            "_listen_size",
            "_news",
            "_on_data",
            "_on_end",
            "_on_hang_up",
            "_on_room",
            "_size",
            "_sock",
            "_system",
            "_task",
        )

        def __init__(self, sock: Socket, system: _System, *, eager: bool) -> None:
            self._sock = sock
            self._system = system
            self._fd = sock.fileno()
            self._exact = isinstance(sock, socket.socket)  # with TLS a short piece does not mean that all was taken
            self._on_hang_up: Callable[[], None] | None = None
            self._broken: OSError | None = None  # the system reports it once, and a listener may be first
            self._ended = False
            self._news = eager
            self._task: trio.lowlevel.Task | None = None
            self._on_data: OnData | None = None
            self._on_end: Callback | None = None
            self._on_room: Callback | None = None
            self._size = RECEIVE_SIZE
            self._listen_size = USUAL_SIZE
            system.add(self._fd, self)

        def on_hang_up(self, left: Callable[[], None]) -> None:
            """Call ``left`` once when the other side has closed its end: at once if it has, else in front of what it
            sent before. A second call replaces the first.
            """
            self._on_hang_up = left
            if self._ended:
                left()

        @property
        def waits(self) -> bool:
            """A task or a function waits, and nothing has come for it yet."""
            return self._task is not None or self._on_data is not None

        @property
        def broken(self) -> bool:
            """A listener was called for an end that was an error: `receive` raises it."""
            return self._broken is not None

        def is_quiet(self) -> bool:
            """Nothing is left to receive, and the other side has not left."""
            if not self._news:
                return True
            try:
                self._sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self._news = self._ended
                return not self._ended
            except OSError:
                pass
            return False

        async def receive(self, size: int = RECEIVE_SIZE) -> bytes:
            """The next bytes, b"" at the end. Raises OSError when the connection breaks, and as `interrupt` says.

            Where they are here already, this is not a checkpoint, but others have their turn if there may be more: a
            client on this machine sends as fast as it is read.
            """
            if self._fd < 0:
                raise trio.ClosedResourceError
            if self._broken is not None:
                raise self._broken
            if self._news:
                try:
                    data = self._take(size)
                except BlockingIOError:
                    if not self._exact:
                        self._rearm()
                else:
                    if self._news:
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    return data
            self._size = size
            self._task = trio.lowlevel.current_task()
            return await trio.lowlevel.wait_task_rescheduled(self._abort)

        def listen(self, on_data: OnData, on_end: Callback) -> None:
            """Call ``on_data`` with all that arrives, until it returns False or `stop_listening`; no task waits for it.

            ``on_end`` is called once, and is the last: the other side has ended, or the connection is `broken`. Neither
            is called before this returns, and neither may raise.
            """
            self._on_data, self._on_end = on_data, on_end
            # Bytes that are here already make no new edge. They are reported in the next turn and not from this call,
            # so that the caller can finish its own work first.
            if self._news:
                self._rearm()

        def stop_listening(self) -> None:
            """End `listen`; the rest is left for `receive`. Idempotent."""
            self._on_data = self._on_end = None

        def on_room(self, room: Callback) -> None:
            """Call ``room`` once when the system takes bytes to send again. A second call replaces the first."""
            # To change the watch has the system look anew: room that was made between the failed send and this call is
            # reported, and no edge is lost.
            self._on_room = room
            if self._fd >= 0:
                self._rearm()

        def _rearm(self) -> None:
            self._system.rearm(self._fd, room=self._on_room is not None)

        def has_room(self) -> None:
            """The poller says so."""
            # The watch for room ends with its first report. Otherwise every answer would cost a report for each time
            # that the client makes room, though nothing waits for it.
            room, self._on_room = self._on_room, None
            if room is not None:
                self._rearm()
                room()

        def at_turn_end(self, call: Callback) -> bool:
            """Call it at the end of the poller's turn that is under way. False: there is none, and it is for now."""
            turn = self._system.turn
            if turn is None:
                return False
            turn.append(call)
            return True

        def interrupt(self) -> bool:
            """A task in `receive` gets ClosedResourceError. No bytes are lost. False: none waits there."""
            waits = self._task is not None
            self._wake(outcome.Error(trio.ClosedResourceError()))
            return waits

        def close(self) -> None:
            """End the watch, and `interrupt`. The socket is closed by its owner. Idempotent."""
            if self._fd >= 0:
                self._system.remove(self._fd)
                self._fd = -1
                self._on_hang_up = self._on_data = self._on_end = self._on_room = None
                self.interrupt()

        def on_news(self, ended: int) -> None:
            """The poller has news of it. ``ended`` is not 0: the other side sends nothing more. Every chunk passes."""
            if ended:
                self._end()
            if (on_data := self._on_data) is not None:
                self._receive_for_listener(on_data)
                return
            self._news = True
            if self._task is None:
                return
            try:
                data = self._take(self._size)
            except BlockingIOError:
                if not self._exact:
                    self._rearm()  # it took some, and not always all
            except OSError as error:
                self._news = True
                self._wake(outcome.Error(error))
            else:
                self._wake(outcome.Value(data))

        def _receive_for_listener(self, on_data: OnData) -> None:
            try:
                data = self._take(self._listen_size)
            except BlockingIOError:
                if not self._exact:
                    self._rearm()
                return
            except OSError as error:
                data, self._broken = b"", error
            if len(data) == self._listen_size:
                self._listen_size = RECEIVE_SIZE
            elif not data:
                on_end, self._on_data, self._on_end, self._news = self._on_end, None, None, True
                if on_end is not None:
                    on_end()
                return
            # One piece for each turn, even if there is more: a client that sends fast does not hold up the others.
            # `_rearm` has the poller report the rest as a new edge, behind the sockets that are ready now.
            goes_on = on_data(data)
            if self._on_data is not on_data:
                return  # it has ended this itself, and another callback may listen by now
            if not goes_on:
                self.stop_listening()
            elif self._news:
                self._rearm()

        def _end(self) -> None:
            self._news = True
            if not self._ended:
                self._ended = True
                if self._on_hang_up is not None:
                    self._on_hang_up()

        def _take(self, size: int) -> bytes:
            """Receive once. Raises BlockingIOError, and OSError when the connection is broken."""
            try:
                data = self._sock.recv(size)
            except BlockingIOError:
                self._news = self._ended
                raise
            # A short piece shows that the system had no more: the next byte makes a new edge. TLS may return less than
            # there is, so there only BlockingIOError shows it. The end makes no second edge, and stays news for ever.
            self._news = self._ended or len(data) == size or not self._exact
            return data

        def _wake(self, result: outcome.Outcome[bytes]) -> None:
            if (task := self._task) is not None:
                self._task = None
                trio.lowlevel.reschedule(task, result)

        def _abort(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

    class _Polled:
        """The common part of epoll and kqueue."""

        def __init__(self, _: trio.Nursery) -> None:
            self.receivers: dict[int, Receiver] = {}
            self.turn: list[Callback] | None = None
            """Calls for the end of the turn under way; None outside of one."""
            self.fresh = set[int]()
            """Descriptors watched since this turn began: its news is of others, which had their numbers before."""

        async def take_turns(self, fd: int, poll: Callable[[], list[tuple[int, int]]], end: int, room: int) -> None:
            """``poll`` gives descriptors with news, each with flags: ``end`` are those of the other side's end, and
            ``room`` says that the system takes bytes to send again.
            """
            receivers = self.receivers
            while True:
                await trio.lowlevel.wait_readable(fd)
                began = time.perf_counter()
                # Several polls for one wake-up by Trio: its own poll and a turn of all other tasks cost more than the
                # work on a chunk, and chunks of other streams mostly come within these microseconds. `SHARE` bounds the
                # time for which other tasks wait.
                for _ in range(ROUNDS):
                    ready = poll()
                    self.turn = turn = list[Callback]()
                    self.fresh.clear()
                    for each, flags in ready:
                        # A callback earlier in this turn has closed it.
                        if (receiver := receivers.get(each)) is None or each in self.fresh:
                            continue
                        try:
                            if flags & room:
                                receiver.has_room()
                                if flags == room:
                                    continue
                            receiver.on_news(flags & end)
                        except Exception:  # it must not end the program, which has other sockets
                            log.exception("a socket is no longer watched, because its callback raised; this is a bug")
                            receiver.close()
                    for call in turn:  # which grows meanwhile
                        try:
                            call()
                        except Exception:
                            log.exception("what was left for the end of a turn raised; this is a bug")
                    self.turn = None
                    if len(ready) < 2 or time.perf_counter() - began > SHARE:
                        break  # one alone has no company that comes a moment later

else:

    class Receiver:
        """As on systems with a poller, with a task for each wait and one that looks for the other side's end."""

        def __init__(self, sock: Socket, system: _System, *, eager: bool) -> None:
            self._sock = sock
            self._system = system
            self._eager = eager
            self._watch: trio.CancelScope | None = None
            self.waits = False
            self.open = True

        def on_hang_up(self, left: Callable[[], None]) -> None:
            self._watch = trio.CancelScope()
            self._system.nursery.start_soon(self._look, self._watch, left)

        async def receive(self, size: int = RECEIVE_SIZE) -> bytes:
            while self.open:
                if not self._eager:
                    self.waits = True
                    try:
                        await trio.lowlevel.wait_readable(self._sock)
                    finally:
                        self.waits = False
                self._eager = True
                try:
                    data = self._sock.recv(size)
                except BlockingIOError:
                    self._eager = False
                else:
                    if len(data) == size:
                        await trio.lowlevel.cancel_shielded_checkpoint()  # see above
                    return data
            raise trio.ClosedResourceError

        def listen(self, on_data: OnData, on_end: Callback) -> None:
            raise NotImplementedError("`Poller.listens` says that there is none")

        def on_room(self, room: Callback) -> None:
            raise NotImplementedError("`Poller.listens` says that there is none")

        def at_turn_end(self, call: Callback) -> bool:
            del call
            return False

        def stop_listening(self) -> None:
            pass

        def interrupt(self) -> bool:
            if waits := self.waits:
                trio.lowlevel.notify_closing(self._sock)
            return waits

        broken = False

        def is_quiet(self) -> bool:
            return not _has_news(self._sock)

        def close(self) -> None:
            if self.open:
                self.open = False
                if self._watch is not None:
                    self._watch.cancel()
                self.interrupt()

        async def _look(self, watch: trio.CancelScope, left: Callable[[], None]) -> None:
            with watch:
                while not _has_left(self._sock):  # noqa: ASYNC110  nothing here tells of it
                    await trio.sleep(LOOK_EVERY)
                left()

    def _has_news(sock: Socket) -> bool:
        """True if something can be received, be it the other side's end."""
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _has_left(sock: Socket) -> bool:
        """True if the other side has closed its end and everything that it sent before has been received."""
        try:
            return sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


if sys.platform == "linux":
    _EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
    _ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

    class _System(_Polled):
        """epoll(7)."""

        def __init__(self, nursery: trio.Nursery) -> None:
            super().__init__(nursery)
            self._epoll = select.epoll()

        def add(self, fd: int, receiver: Receiver) -> None:
            self._epoll.register(fd, _EVENTS)
            self.receivers[fd] = receiver
            self.fresh.add(fd)

        def rearm(self, fd: int, *, room: bool = False) -> None:
            """Tell of what is there now as if it had just come; with ``room`` of room to send as well."""
            self._epoll.modify(fd, _EVENTS | select.EPOLLOUT if room else _EVENTS)

        def remove(self, fd: int) -> None:
            del self.receivers[fd]
            self._epoll.unregister(fd)

        async def run(self) -> None:
            poll = self._epoll.poll
            await self.take_turns(self._epoll.fileno(), lambda: poll(0, TURN), _ENDS, select.EPOLLOUT)

        def close(self) -> None:
            self._epoll.close()

elif sys.platform == "darwin":
    ROOM = 1 << 30
    """Our own flag, which no event of kqueue has."""

    class _System(_Polled):
        """kqueue(2), which tells of what arrives and of the end with one kind of event."""

        def __init__(self, nursery: trio.Nursery) -> None:
            super().__init__(nursery)
            self._kqueue = select.kqueue()

        def add(self, fd: int, receiver: Receiver) -> None:
            self.rearm(fd)
            self.receivers[fd] = receiver
            self.fresh.add(fd)

        def rearm(self, fd: int, *, room: bool = False) -> None:
            """Tell of what is there now as if it had just come; with ``room`` of room to send as well."""
            self._change(fd, select.KQ_EV_ADD | select.KQ_EV_CLEAR)
            if room:
                once = select.kevent(fd, select.KQ_FILTER_WRITE, select.KQ_EV_ADD | select.KQ_EV_ONESHOT)
                self._kqueue.control([once], 0)

        def remove(self, fd: int) -> None:
            del self.receivers[fd]
            self._change(fd, select.KQ_EV_DELETE)

        async def run(self) -> None:
            await self.take_turns(self._kqueue.fileno(), self._poll, select.KQ_EV_EOF, ROOM)

        def close(self) -> None:
            self._kqueue.close()

        def _poll(self) -> list[tuple[int, int]]:
            return [
                (one.ident, ROOM if one.filter == select.KQ_FILTER_WRITE else one.flags)
                for one in self._kqueue.control(None, TURN, 0)
            ]

        def _change(self, fd: int, flags: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)

else:

    class _System:
        """The system has no poller that can be waited for: only the watches for the other side's end."""

        def __init__(self, nursery: trio.Nursery) -> None:
            self.nursery = nursery

        async def run(self) -> None:
            await trio.sleep_forever()

        def close(self) -> None:
            pass
