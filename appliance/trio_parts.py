"""Small parts that Trio does not have, for every room that waits."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Generic, Never, TypeVar, cast

import trio

AGAIN = 2.0
"""Seconds until work that lacked something is tried again."""
EPISODE = 60.0
"""Seconds after which the log has the same lack again."""
SHORT = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS))
NO_THREAD = "can't start new thread"

WATCH_EVERY = 1.0
"""Seconds between two looks at what is watched."""
SETTLED = 0.25
"""A file that has not changed for so many seconds is written: half a configuration would be one with fewer models."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class plain_nursery:
    """A nursery that a single exception leaves as it is, be it of the block or of a task.

    Trio makes a group of it, since more than one task may fail. Several exceptions still leave as a group. `Cancelled`
    beside an exception is dropped: whatever cancelled the block sees the exception instead.
    """

    def __init__(self) -> None:
        self._nursery = trio.open_nursery()

    async def __aenter__(self) -> trio.Nursery:
        return await self._nursery.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            return bool(await self._nursery.__aexit__(kind, error, trace))
        except BaseExceptionGroup as group:
            single = _single(group)
        if single is error:
            return False  # the block's own goes on as if there were no nursery
        raise single  # outside of the handler, where its context does not become the group


class beside(plain_nursery):
    """Runs tasks beside the block, and cancels them at its end. Further ones may be started in the nursery."""

    def __init__(self, *tasks: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._tasks = tasks
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> trio.Nursery:
        nursery = await super().__aenter__()
        for task in self._tasks:
            nursery.start_soon(task)
        self._scope = nursery.cancel_scope
        return nursery

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._scope.cancel()
        return await super().__aexit__(kind, error, trace)


async def wait_any(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of these has ended; the others are cancelled."""
    async with plain_nursery() as nursery:

        async def wait(first: Callable[[], Awaitable[object]]) -> None:
            await first()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)


async def every(seconds: float, act: Callable[[], Awaitable[object] | None], *, first: float | None = None) -> Never:
    """Act every so many seconds, first after that time, or after ``first``: a sign of life, a line of progress."""
    await trio.sleep(seconds if first is None else first)
    while True:
        if (acting := act()) is not None:
            await acting
        await trio.sleep(seconds)


async def watch(
    look: Callable[[], Awaitable[T | None]], act: Callable[[], Awaitable[object]], *, seen: T | None = None
) -> Never:
    """Act whenever ``look`` returns something else than before, and the same again `SETTLED` later.

    What cannot be seen (None) is waited for.
    """
    while True:
        now = await look()
        if now is None or now == seen:
            await trio.sleep(WATCH_EVERY)
            continue
        await trio.sleep(SETTLED)
        if await look() == now:
            seen = now
            await act()


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception in groups within groups, or the group of several. One `Cancelled` stands for all."""
    found = list(_within(group))
    errors = [error for error in found if not isinstance(error, trio.Cancelled)] or found[:1]
    return errors[0] if len(errors) == 1 else group


def _within(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    inner: tuple[BaseException, ...] = group.exceptions
    for error in inner:
        if isinstance(error, BaseExceptionGroup):
            yield from _within(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error


class Memo(Generic[T]):
    """A value that costs something to make. It is good for ``seconds``, and for the thing that it was made of."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._value: T | None = None
        self._of: object = None
        self._good_until = -math.inf
        self._making = trio.Lock()

    async def get(self, make: Callable[[], Awaitable[T]], *, of: object = None) -> T:
        """Return it. Where it has to be made, one task does so at a time, and those that wait get the same."""
        async with self._making:
            if (value := self._value) is None or of != self._of or trio.current_time() > self._good_until:
                self._value = value = await make()
                self._of, self._good_until = of, trio.current_time() + self._seconds
            return value


class Awaited(Generic[T]):
    """A value that is made after those who wait for it."""

    def __init__(self) -> None:
        self._made: list[T] = []
        self._there = trio.Event()

    def give(self, value: T) -> None:
        """Once at most."""
        self._made.append(value)
        self._there.set()

    async def get(self) -> T:
        """Wait until it is there."""
        await self._there.wait()
        return self._made[0]


class Changed:
    """Wakes everybody who waits, as often as something changes.

    A `trio.Event` is set once, so each wake-up needs a new one. Here only somebody who waits makes it: a change that
    nobody waits for costs an attribute. No wake-up is lost as long as nothing is awaited between a look at the facts
    and `wait`.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: trio.Event | None = None

    def wake(self) -> None:
        """Wake every task that waits now; a task that waits later waits for the next change."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait for the next change."""
        if self._next is None:
            self._next = trio.Event()
        await self._next.wait()


class BackOff:
    """The pauses before something that dies is started again: longer after each death in a row."""

    PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; the last one for every later death
    LIVED = 60.0  # seconds after which a death is the first in a row again

    def __init__(self) -> None:
        self._deaths, self._started = 0, -math.inf

    def pause(self) -> float:
        """It has died: return the seconds until it is started again."""
        now = trio.current_time()
        self._deaths = 1 if now > self._started + self.LIVED else self._deaths + 1
        pause = self.PAUSES[min(self._deaths, len(self.PAUSES)) - 1]
        self._started = now + pause
        return pause


class WriteBehind:
    """Writes in a thread what nobody waits for. One piece of work runs at a time.

    Writes gather for ``pause`` seconds from the first of them on: a thread for each would cost the program a tenth of
    its time. Work that did not succeed is done again ``retry`` seconds later, and the last one has ``flush`` seconds.
    """

    def __init__(self, pause: float = 0.05, retry: float = 1.0, flush: float = 3.0) -> None:
        self._pause = pause
        self._retry = retry
        self._flush = flush
        self._wake = trio.Event()
        self._turn = trio.CapacityLimiter(1)

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    async def run(self, write: Callable[[], Awaitable[bool]]) -> Never:
        """Call ``write`` after each wake, until cancelled. It returns False if it has to be called again.

        An exception leaves the wake as it was, so that a second call of `run` writes again.
        """
        while True:
            await self._wake.wait()
            await trio.sleep(self._pause)
            self._wake = trio.Event()
            written = False
            try:
                written = await write()
            finally:
                if not written:
                    self._wake.set()
            if not written:
                await trio.sleep(self._retry)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Do this in a thread, while nothing else is written."""
        return await trio.to_thread.run_sync(work, limiter=self._turn)

    async def finish(self, work: Callable[[], T]) -> T | None:
        """Do the last work, even where everything is cancelled; return None if that took too long."""
        with trio.move_on_after(self._flush, shield=True):
            return await trio.to_thread.run_sync(work, limiter=self._turn, abandon_on_cancel=True)
        return None


def lacking(error: BaseException) -> str:
    """Return the system's words for the lack, where nothing else went wrong; empty for anything else.

    The machine, or a limit, had no file, process, thread or memory left. It may have some again a moment later.
    """
    match error:
        case BaseExceptionGroup():
            told = [lacking(each) for each in _within(error)]
            return told[0] if all(told) else ""
        case OSError():
            return error.strerror or str(error) if error.errno in SHORT else ""
        case RuntimeError():
            return str(error) if str(error) == NO_THREAD else ""
        case ImportError():
            return str(error) if "Too many open files" in str(error) else ""
        case MemoryError():
            return "out of memory"
        case _:
            return ""


async def persist(what: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do ``work``, and do it again where it lacked a file, a process, a thread or memory: that never ends the program.

    Every task in the background whose work may need one of these runs in here. ``work`` may be a loop without end; it
    keeps what it knows outside of itself, because it begins anew. The log says once that ``what`` has to wait.
    """
    told_at = -math.inf
    while True:
        try:
            return await work()
        except Exception as error:
            why = lacking(error)
            if not why:
                raise
        now = trio.current_time()
        if now > told_at + EPISODE:
            log.warning("%s has to wait, and is tried again every %g s: %s", what, AGAIN, why)
        told_at = now
        await trio.sleep(AGAIN)
