"""Something that writes into an answer beside the work that the answer waits for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from appliance.errors import ApplianceError
from appliance.trio_parts import plain_nursery

LAST_WORDS = 1.0
"""Seconds that what is being written gets to be whole before an error follows it."""


class Teller(Protocol):
    """Writes in a task of its own."""

    async def run(self) -> None:
        """Return when the last line has been written."""
        ...

    def stop(self) -> None:
        """End after the line that is being written."""
        ...


@asynccontextmanager
async def told_meanwhile(teller: Teller) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Run ``teller`` beside the block. What is yielded returns when the teller has written its last.

    An ApplianceError of the block leaves as itself, when the teller has finished what it was writing.
    """
    done = trio.Event()

    async def run() -> None:
        try:
            await teller.run()
        finally:
            done.set()

    async def stop() -> None:
        teller.stop()
        await done.wait()

    async with plain_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield stop
        except ApplianceError:
            with trio.move_on_after(LAST_WORDS):
                await stop()
            raise
        nursery.cancel_scope.cancel()
