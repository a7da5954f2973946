"""An update, carried out: staged, proven, tried, put in its place.

`core.versions` decides what comes next, and `store.shelf` has the folder. A step's own work is handed in.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TypeVar

import trio
from msgspec import Struct

from appliance.core.versions import BuildRefused, Journal, Step, StepDone, UpdateBegun, VersionState
from appliance.store.shelf import VersionShelf

CLEAN_UP_TIME = 30.0  # seconds that a cancelled update may take to remove what it has staged

S = TypeVar("S", bound=VersionState)
E = TypeVar("E")


class Steps(Struct, frozen=True, kw_only=True):
    """The work of an update. The strings are why the build is not taken; empty: it is."""

    stage: Callable[[], Awaitable[object]]
    """Have the build among the staged ones; not called for one that is in its place already."""
    prove: Callable[[Path], Awaitable[str]]
    """Prove the build in this folder on its devices; return what fails, or an empty text."""
    canary: Callable[[Path], Awaitable[str]]
    """Run the user's own model on it; return what fails or is too slow, or an empty text."""
    apply: Callable[[Step], None] = lambda step: None


async def run_update(shelf: VersionShelf[S, E], build: str, old: str, steps: Steps, held: Collection[str] = ()) -> str:
    """Go from ``old`` to ``build``; why not, or empty. The caller is `alone`. A step that raises changes nothing."""
    begun = UpdateBegun(build=build, old=old, at=time.time(), held=tuple(held))
    journal = (await trio.to_thread.run_sync(shelf.state.apply, [begun])).journal
    done, why = False, ""
    try:
        while journal is not None:
            steps.apply(journal.step)
            if why := await _work(shelf, journal, steps):
                return why
            journal = (await trio.to_thread.run_sync(shelf.state.apply, [StepDone(time.time())])).journal
        done = True
        return ""
    finally:
        if not done:
            with trio.move_on_after(CLEAN_UP_TIME, shield=True):
                await trio.to_thread.run_sync(shelf.settle, BuildRefused(why, time.time()))


async def _work(shelf: VersionShelf[S, E], journal: Journal, steps: Steps) -> str:
    match journal.step:
        case "stage":
            if journal.build not in await trio.to_thread.run_sync(shelf.placed):
                await steps.stage()
            return ""
        case "prove":
            return await steps.prove(await trio.to_thread.run_sync(shelf.folder_of, journal.build))
        case "canary":
            return await steps.canary(await trio.to_thread.run_sync(shelf.folder_of, journal.build))
        case _:
            await trio.to_thread.run_sync(shelf.work, journal)
            return ""
