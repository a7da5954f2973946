"""Finding out in the background what is not known of engines: one task, which steps aside for every request.

It looks at the machine, asks every build for its devices, and proves the seats that nobody has tried. When drivers or
cards change, when the machine wakes up from sleep, when a seat fails at work, or when time has made a failure worth
another try, it does as much of that again as is in doubt.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from appliance.core.engines.choice import Seat
from appliance.platform.power import Suspends

if TYPE_CHECKING:
    from appliance.engines.owner import Engines

QUIET = 3.0
"""Seconds without a request before something is tried: a proof measures speed, and takes a core."""
PATIENCE = 900.0
"""Seconds for which requests may keep a seat from being tried; then it is tried beside them."""
EVERY = 30.0
"""Seconds between two looks whether drivers, cards or the time have changed something."""
LOOK = 0.1
"""Seconds between two looks whether a request is under way."""

log = logging.getLogger(__name__)


async def keep_up(engines: Engines) -> None:
    """Run for as long as the engines are used; cancelled at the end."""
    suspends = Suspends()
    while True:
        await _wait_quiet(engines)
        if engines.look is None or engines.unlisted:
            await engines.probe()
        for seat in engines.in_doubt():
            await _prove_in_peace(engines, seat)
        engines.settled()
        await _wait_for_doubt(engines, suspends)


async def _wait_for_doubt(engines: Engines, suspends: Suspends) -> None:
    """Return when there is something to find out."""
    while True:
        with trio.move_on_after(EVERY):
            await engines.wait_suspect()
            return
        if suspends.happened():
            log.info("the machine was asleep; its devices are looked at again")
            engines.doubt()
            return
        if engines.has_changed():
            log.info("a driver or a card has changed; the devices are looked at again")
            return
        if not engines.busy():
            await engines.refresh()  # another program may have installed a build, or chosen one
            engines.settled()
            if engines.in_doubt():
                return


async def _prove_in_peace(engines: Engines, seat: Seat) -> None:
    """A request that comes meanwhile goes first: the trial is broken off, and begun again when it is quiet."""
    until = trio.current_time() + PATIENCE
    proven = False
    while not proven:
        with trio.move_on_at(until):
            await _wait_quiet(engines)
        async with trio.open_nursery() as nursery:
            if trio.current_time() < until:
                nursery.start_soon(_cancel_when_busy, engines, nursery.cancel_scope)
            await engines.prove([seat])
            proven = True
            nursery.cancel_scope.cancel()


async def _cancel_when_busy(engines: Engines, scope: trio.CancelScope) -> None:
    while not engines.busy():  # noqa: ASYNC110  what is looked at has no event, and is looked at while it is quiet
        await trio.sleep(LOOK)
    scope.cancel()


async def _wait_quiet(engines: Engines) -> None:
    quiet_since = trio.current_time()
    while trio.current_time() < quiet_since + QUIET:
        await trio.sleep(min(LOOK, QUIET))
        if engines.busy():
            quiet_since = trio.current_time()
