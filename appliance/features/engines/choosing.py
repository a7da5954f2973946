"""The seats that somebody names, and the user's choices; with these the caller has the shelf to itself."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from appliance.core.versions import RolledBack, lines_to_roll_back
from appliance.errors import NotFound, UsageError
from appliance.features.engines.core.choice import AUTO, EngineWish, check_choice
from appliance.features.engines.core.standing import Seat
from appliance.features.engines.core.state import EngineChosen
from appliance.features.engines.owner import Engines
from appliance.features.engines.shelf import Shelf


def named_seats(engines: Engines, names: Iterable[str], *, backends: bool = False) -> list[Seat]:
    """The seats with these ids, of builds with them, and with ``backends`` of a backend. Raises NotFound."""
    found: dict[str, Seat] = {}
    for name in names:
        named = {
            seat.id: seat
            for seat in engines.seats
            if name in (seat.id, seat.build) or (backends and name == seat.backend)
        }
        if not named:
            known = ", ".join(seat.id for seat in engines.seats) or "none"
            raise NotFound(f"there is no engine '{name}' here; there is {known}")
        found |= named
    return list(found.values())


async def prefer(engines: Engines, wish: EngineWish, *, only_proven: bool = False) -> str:
    """Remember the choice; return why that engine cannot be used now, or an empty text.

    Raises UsageError for a choice that `check_choice` refuses, and OSError.
    """
    word = wish.engine
    note = check_choice(wish, engines.ranked(word=word), only_proven=only_proven)
    named = dict.fromkeys(seat.build for seat in engines.seats if word in (seat.id, seat.build))
    chosen = None if word == AUTO else word
    engines.apply(EngineChosen(word=chosen, model=wish.model, pinned=wish.pinned, builds=tuple(named)))
    await keep(engines)
    return note


async def roll_back(engines: Engines, backend: str | None) -> tuple[str, list[str]]:
    """Return to the build before the last update: its id, and the lines that have been updated, the one meant last.

    Raises UsageError if there is none, and OSError.
    """
    here = tuple(engine.id for engine in engines.engines if not engine.damage)
    lines = [line.name for line in lines_to_roll_back(engines.state, backend, here)]
    event = RolledBack(kind=backend, here=here, why="'engines rollback' replaced it")
    try:
        state = await trio.to_thread.run_sync(Shelf(engines.folder).state.apply, [event])
    except UsageError as cause:
        raise UsageError(f"{cause}; 'llama-appliance engines use BUILD' switches to another build") from None
    await engines.sync()
    line = state.line(lines[-1])
    assert line is not None
    return line.current, lines


async def keep(engines: Engines) -> None:
    """Make sure that everything is in the file, or raise OSError."""
    if not await engines.sync():
        shelf = Shelf(engines.folder)
        raise OSError(None, f"nothing has changed: {shelf.state.path} cannot be written; {shelf.make_room}")
