"""Small parts that Trio does not have, for every room that waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def plain_nursery() -> AsyncGenerator[trio.Nursery]:
    """Open a nursery that a single exception leaves as it is, be it of the block or of a task.

    Trio makes a group of it, since more than one task may fail. Several exceptions still leave as a group. `Cancelled`
    beside an exception is dropped: whatever cancelled the block sees the exception instead.
    """
    single: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        single = _single(group.split(trio.Cancelled)[1] or group)
    if single is not None:
        raise single  # outside of the handler, where its context does not become the group


def _single(error: BaseException) -> BaseException:
    """Return the only exception in groups within groups, or the group of several."""
    match error:
        case BaseExceptionGroup(exceptions=(inner,)):
            return _single(inner)
        case _:
            return error


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
        """Something has changed. Everybody who waits now goes on; whoever waits later waits for the next change."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait for the next change."""
        if self._next is None:
            self._next = trio.Event()
        await self._next.wait()
