"""Work beside which somebody tells the waiting client that it goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from appliance.errors import ApplianceError

LAST_WORDS = 1.0
"""Seconds that what is being written gets to be whole before an error follows it."""


class Teller(Protocol):
    """Writes into the answer before the engine does; see `relay.Pinger` and `loading.LoadingStream`."""

    async def run(self) -> None: ...

    def ready(self) -> None: ...

    def stop(self) -> None: ...


class Telling:
    """A teller at work."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self._done = trio.Event()

    async def run(self) -> None:
        try:
            await self.teller.run()
        finally:
            self._done.set()

    async def stop(self) -> None:
        """Returns when the teller has written its last."""
        self.teller.stop()
        await self._done.wait()


async def telling_while(teller: Teller | None, work: Callable[[Telling | None], Awaitable[None]]) -> None:
    """Do ``work``, which stops the teller when it writes itself. Its ApplianceError passes through."""
    if teller is None:
        await work(None)
        return
    telling = Telling(teller)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telling.run)
        failure = await outcome(partial(work, telling))
        if failure is not None:
            with trio.move_on_after(LAST_WORDS):
                await telling.stop()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def outcome(work: Callable[[], Awaitable[None]]) -> ApplianceError | None:
    """An expected failure as a value, so that it can leave a nursery without becoming a group."""
    try:
        await work()
    except ApplianceError as error:
        return error
    return None
