"""An update, carried out: each step in its order, with the journal on the disk before it begins.

What is decided is in `core.engines.update`; what a step is made of is handed in. `recover` is for every start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from msgspec import Struct

from appliance.core.engines import update
from appliance.core.engines.changes import Changes, Step
from appliance.engines.shelf import STAGED, WORK, Shelf
from appliance.errors import Conflict
from appliance.store.partial_file import Taken, claim

CLEAN_UP_TIME = 30.0
"""Seconds that a cancelled update may take to remove what it has staged."""
MAKE_ROOM = "make it writable, make room, or name another folder with LLAMA_APPLIANCE_ENGINES_DIR"

log = logging.getLogger(__name__)


class Steps(Struct, frozen=True, kw_only=True):
    """What an update consists of. The strings are why it is not taken; empty: it is."""

    stage: Callable[[], Awaitable[object]]
    """Have the build among the staged ones; not called for one that is in its place already."""
    prove: Callable[[Path], Awaitable[str]]
    """Whether the build in this folder works on the devices that it is for."""
    canary: Callable[[Path], Awaitable[str]]
    """Whether it runs the user's own model, and not too slowly."""
    tell: Callable[[Step], None] = lambda step: None


async def run_update(shelf: Shelf, build: str, old: str, steps: Steps, held: Collection[str] = ()) -> str:
    """Go over from ``old`` to ``build``; why not, or empty. Whoever calls it is `alone` with the shelf.

    Raises what the steps raise, and then nothing has changed.
    """
    await change(shelf, lambda changes: update.begin(changes, build, old, time.time(), held))
    done = False
    try:
        if why := await _try(shelf, build, steps):
            return why
        await _advance(shelf, steps)  # place
        if build not in await trio.to_thread.run_sync(shelf.placed):
            await trio.to_thread.run_sync(shelf.put, build)
        changes = await _advance(shelf, steps)  # switched, in the same writing
        done = True
        surplus = changes.journal.surplus if changes.journal is not None else ()
        await trio.to_thread.run_sync(shelf.remove, surplus)
        await change(shelf, lambda changes: update.advance(changes, time.time()))
        return ""
    finally:
        if not done:
            with trio.move_on_after(CLEAN_UP_TIME, shield=True):
                await trio.to_thread.run_sync(_give_up, shelf)


async def _try(shelf: Shelf, build: str, steps: Steps) -> str:
    """Everything before the build gets its place."""
    steps.tell("stage")
    here = build in await trio.to_thread.run_sync(shelf.placed)
    if not here:
        await steps.stage()
    folder = shelf.place_of(build) if here else shelf.staged_at(build)
    await _advance(shelf, steps)
    if why := await steps.prove(folder):
        return why
    await _advance(shelf, steps)
    return await steps.canary(folder)


async def _advance(shelf: Shelf, steps: Steps) -> Changes:
    changes = await change(shelf, lambda changes: update.advance(changes, time.time()))
    if changes.journal is not None:
        steps.tell(changes.journal.step)
    return changes


async def change(shelf: Shelf, edit: Callable[[Changes], Changes]) -> Changes:
    """Make a change that is on the disk when this returns. Raises what ``edit`` raises, and OSError."""
    return await trio.to_thread.run_sync(shelf.changes.change, edit)


def _give_up(shelf: Shelf) -> None:
    """First what is on the disk, then the journal that tells of it."""
    shelf.discard()
    shelf.changes.change(update.given_up)


def recover(shelf: Shelf) -> None:
    """Clean up, or bring to its end, what a killed program has left; nothing where another one is at it now.

    For every start, before engines are looked for. Waits for the disk; raises OSError.
    """
    left = any((shelf.root / name).exists() for name in (STAGED, WORK))
    if not left and shelf.changes.read().journal is None:
        return
    try:
        lock = claim(shelf.lock)
    except Taken:
        return
    try:
        changes = shelf.changes.read()
        if changes.journal is not None:
            log.warning("an update to %s was cut short at the step '%s'", changes.journal.build, changes.journal.step)
        now = time.time()
        shelf.carry_out(update.recover(changes, staged=shelf.staged(), placed=shelf.placed(), now=now))
    finally:
        lock.release()


@asynccontextmanager
async def alone(shelf: Shelf) -> AsyncGenerator[None]:
    """Nobody else installs, updates or removes meanwhile; what was cut short is cleared up.

    Raises Conflict, and OSError that says what to do.
    """
    try:
        await trio.to_thread.run_sync(recover, shelf)
        lock = await trio.to_thread.run_sync(claim, shelf.lock)
    except Taken:
        raise Conflict("another 'llama-appliance engines' command changes the builds now; wait until it ends") from None
    except OSError as cause:
        told = f"nothing can be changed in {shelf.root} ({cause.strerror or cause}); {MAKE_ROOM}"
        raise OSError(cause.errno, told) from None
    try:
        yield
    finally:
        lock.release()
