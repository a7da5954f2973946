"""Small parts that Trio does not have, for every room that waits."""

from __future__ import annotations

import trio


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
