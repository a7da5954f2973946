"""Finding out in the background what is not known of engines: one task, which steps aside for every request.

It looks at the machine, asks every build for its devices, and proves the seats that nobody has tried. When drivers or
cards change, when the machine wakes up from sleep, when a seat fails at work, or when time has made a failure worth
another try, it does as much of that again as is in doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio
from msgspec import Struct, field

from appliance.features.engines.core.standing import Seat
from appliance.features.engines.owner import Engines
from appliance.platform.machine import Suspends
from appliance.trio_parts import beside, persist

QUIET = 3.0  # seconds without a request before something is tried: a proof measures speed, and takes a core
PATIENCE = 900.0  # seconds for which requests may keep a seat from being tried; then it is tried beside them
EVERY = 30.0  # seconds between two looks whether drivers, cards or the time have changed something
SELDOM = 3600.0  # most seconds until a build that did not answer is asked again
LOOK = 0.1  # seconds between two looks whether a request is under way

log = logging.getLogger(__name__)


class EngineUpkeep(Struct):
    """Finds out beside a block. ``busy`` tells whether requests are under way: then nothing is tried.

    ``settled`` is called now and then while none is: the best seat may be another one than before. ``suspends`` notices
    that the machine was asleep.
    """

    engines: Engines
    busy: Callable[[], bool]
    settled: Callable[[], None]
    quiet: float = QUIET
    every: float = EVERY
    suspends: Suspends = field(default_factory=Suspends)

    def open(self) -> AbstractAsyncContextManager[object]:
        """Find out for the length of the block."""
        return beside(partial(persist, "finding out about engines", self._run))

    async def _run(self) -> None:
        pause = self.every
        while True:
            await self._wait_quiet()
            if self.engines.look is None or self.engines.unlisted:
                await self.engines.probe()
            for seat in self.engines.in_doubt():
                await self._prove_in_peace(seat)
            self.settled()
            # A build that never answers keeps a process busy each time: it is asked less and less often.
            pause = min(2 * pause, SELDOM) if self.engines.unlisted else self.every
            await self._wait_for_doubt(trio.current_time() + pause)

    async def _wait_for_doubt(self, again: float) -> None:
        """Return when there is something to find out; from ``again`` on, also what a build did not answer."""
        while True:
            with trio.move_on_after(self.every):
                await self.engines.wait_suspect()
                return
            if self.suspends.happened():
                log.info("the machine was asleep; its devices are looked at again")
                self.engines.doubt()
                return
            if self.engines.has_changed():
                log.info("a driver or a card has changed; the devices are looked at again")
                return
            if not self.busy():
                await self.engines.refresh()  # another program may have installed a build, or chosen one
                self.settled()
                if self.engines.in_doubt() or (self.engines.unlisted and trio.current_time() >= again):
                    return

    async def _prove_in_peace(self, seat: Seat) -> None:
        """A request that comes meanwhile goes first: the trial is broken off, and begun again when it is quiet."""
        until = trio.current_time() + PATIENCE
        proven = False
        while not proven:
            with trio.move_on_at(until):
                await self._wait_quiet()
            async with beside() as nursery:
                if trio.current_time() < until:
                    nursery.start_soon(self._cancel_when_busy, nursery.cancel_scope)
                await self.engines.prove([seat], again=False)
                proven = True

    async def _cancel_when_busy(self, scope: trio.CancelScope) -> None:
        while not self.busy():  # noqa: ASYNC110  what is looked at has no event, and is looked at while it is quiet
            await trio.sleep(LOOK)
        scope.cancel()

    async def _wait_quiet(self) -> None:
        quiet_since = trio.current_time()
        while trio.current_time() < quiet_since + self.quiet:
            await trio.sleep(min(LOOK, self.quiet))
            if self.busy():
                quiet_since = trio.current_time()
