"""An update as a state machine over its journal, so that a kill at any instant leaves a machine that works.

    stage -> prove -> canary -> place -> tidy -> done

The journal is on the disk before a step begins. Until *place* ends, the new build lies where no search for builds
looks, and the old one is in use; *place* is one renaming of a folder; the switch is one writing of ``changes.json``,
together with the step *tidy*. So there is no instant without a build in its place: `recover` says what is left to do.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, structs

from appliance.core.engines.changes import Changes, Journal, Step, line_of, switched
from appliance.core.engines.speeds import Speeds
from appliance.errors import Conflict

SPEED_KEPT = 0.8
"""Part of the old build's speed that a new one must reach."""

NEXT: dict[Step, Step] = {"stage": "prove", "prove": "canary", "canary": "place"}


class Discard(Struct, frozen=True):
    """Remove everything that is staged."""


class Place(Struct, frozen=True):
    """Move the staged build to its place among the others, by one rename."""

    build: str


class Remove(Struct, frozen=True):
    """Remove builds; a missing one is not an error."""

    builds: tuple[str, ...]


class Note(Struct, frozen=True):
    """Write these changes."""

    changes: Changes


Effect = Discard | Place | Remove | Note


def begin(changes: Changes, build: str, old: str, now: float, held: Collection[str] = ()) -> Changes:
    """Begin an update to ``build``; ``old`` is in use, and builds that are ``held`` are never removed by it.

    Raises Conflict if another update was not finished.
    """
    if changes.journal is not None:
        raise Conflict(
            f"an update to {changes.journal.build} was begun and not finished; "
            "'llama-appliance engines probe' completes or removes it"
        )
    return structs.replace(
        changes, journal=Journal(line=line_of(build), build=build, old=old, step="stage", began=now, held=tuple(held))
    )


def advance(changes: Changes, now: float) -> Changes:
    """Complete the current step. After *place* the new build is the line's current one; after *tidy* all is done."""
    journal = changes.journal
    assert journal is not None
    match journal.step:
        case "stage" | "prove" | "canary":
            return structs.replace(changes, journal=structs.replace(journal, step=NEXT[journal.step]))
        case "place":
            changed, surplus = switched(changes, journal.line, journal.build, journal.old, now)
            gone = tuple(build for build in surplus if build not in journal.held)
            return structs.replace(changed, journal=structs.replace(journal, step="tidy", surplus=gone))
        case "tidy":
            return structs.replace(changes, journal=None)


def given_up(changes: Changes) -> Changes:
    """End the update without a result."""
    return structs.replace(changes, journal=None)


def recover(changes: Changes, *, staged: Collection[str], placed: Collection[str], now: float) -> list[Effect]:
    """Return the work left over, in order, after a program ended in the middle of an update; repeating it does no harm.

    ``staged`` are the complete builds in the staging folder, ``placed`` those in their place. Builds not yet known to
    work are thrown away, with everything that is staged. An update that had passed every test is completed, and so is
    an installation, which needs no test.
    """
    journal = changes.journal
    if journal is None:  # an installation is cut short when its build is whole: nothing is left to be tried first
        return [*(Place(build) for build in sorted(staged) if build not in placed), Discard()]
    if journal.step == "place":
        if journal.build not in placed and journal.build not in staged:
            return [Discard(), Note(given_up(changes))]
        place: list[Effect] = [Place(journal.build)] if journal.build not in placed else []
        switch = advance(changes, now)
        return [*place, Note(switch), *recover(switch, staged=(), placed=placed, now=now)]
    if journal.step == "tidy":
        return [Remove(journal.surplus), Discard(), Note(advance(changes, now))]
    return [Discard(), Note(given_up(changes))]


def canary_failure(old: Speeds | None, new: Speeds) -> str:
    """Return why the new build is refused because of its speed; empty: it is not. Without an old one, any speed will
    do.
    """
    if old is None or new.nominal_seconds * SPEED_KEPT <= old.nominal_seconds:
        return ""
    reached = 100 * old.nominal_seconds / new.nominal_seconds
    return (
        f"it reaches {reached:.0f} % of the speed of the build in use (at least "
        f"{100 * SPEED_KEPT:.0f} % are required): {new.prompt:.0f} and {new.generation:.0f} tokens/s, "
        f"not {old.prompt:.0f} and {old.generation:.0f}"
    )
