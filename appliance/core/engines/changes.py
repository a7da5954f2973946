"""The build in use of each kind, the builds before it, and the update that is under way.

A *line* is the builds for one platform and backend, ``linux-x64-cpu``. A line that an update or a rollback has been
through has a current build, which goes before the others of the line; one that nobody has changed has none, and its
builds are ranked like any others. Kept in ``changes.json`` beside the installed builds, written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from appliance.core.engines.choice import Ranked
from appliance.errors import Conflict, UsageError

KEPT = 2
"""Number of builds before the current one that stay on the disk."""
TRIAL = 3600.0
"""Seconds after a switch within which a failure of the new build restores the old one."""

Step = Literal["stage", "prove", "canary", "place", "tidy"]
Role = Literal["current", "previous", "withdrawn", ""]
NOBODY: Mapping[str, str] = {}


class Line(Struct, frozen=True, kw_only=True):
    """One line with its history."""

    name: str
    current: str
    """A build's id."""
    previous: tuple[str, ...] = ()
    """Ids, the one before the current first; at most `KEPT`."""
    switched_at: float = 0.0
    """Unix time at which the current build came into use."""


class Journal(Struct, frozen=True, kw_only=True):
    """The update under way. ``step`` is the current step, or the one at which the program was killed."""

    line: str
    build: str
    """The new build's id."""
    old: str
    """The id of the line's build that is in use until the switch."""
    step: Step
    began: float
    held: tuple[str, ...] = ()
    """Builds that the user asked for by name; they stay on the disk."""
    surplus: tuple[str, ...] = ()
    """Ids of builds to remove now that the switch is done."""


class Changes(Struct, frozen=True, kw_only=True):
    """The whole state. Each change makes a new one."""

    lines: tuple[Line, ...] = ()
    withdrawn: Mapping[str, str] = NOBODY
    """Builds that were rolled back, with the reason: they go behind all others."""
    journal: Journal | None = None

    def line(self, name: str) -> Line | None:
        return next((line for line in self.lines if line.name == name), None)

    def role(self, build: str) -> Role:
        """Return a build's place in its line; empty: nobody has decided anything about it."""
        if build in self.withdrawn:
            return "withdrawn"
        line = self.line(line_of(build))
        if line is None:
            return ""
        return "current" if line.current == build else "previous" if build in line.previous else ""

    def with_line(self, line: Line) -> Changes:
        others = [one for one in self.lines if one.name != line.name]
        return structs.replace(self, lines=(*others, line))

    def without(self, build: str) -> Changes:
        """The build is gone from the disk. A line whose current build it was returns to the previous one."""
        line = self.line(line_of(build))
        withdrawn = {name: why for name, why in self.withdrawn.items() if name != build}
        changed = structs.replace(self, withdrawn=withdrawn)
        if line is None:
            return changed
        left = [one for one in (line.current, *line.previous) if one != build]
        if not left:
            return structs.replace(changed, lines=tuple(one for one in self.lines if one.name != line.name))
        at = line.switched_at if left[0] == line.current else 0.0
        return changed.with_line(Line(name=line.name, current=left[0], previous=tuple(left[1:]), switched_at=at))


def line_of(build: str) -> str:
    """Return ``linux-x64-cpu`` of ``linux-x64-cpu/b11434``; anything but a build is a line of its own."""
    name, slash, release = build.partition("/")
    return name if slash and name and release and "/" not in release else build


def arrange(ranked: Sequence[Ranked], changes: Changes) -> list[Ranked]:
    """`choice.rank`'s order with what was decided about lines; to be applied to its result.

    The places that one line's seats have, of one standing and on the same side (processor or cards), stay; its
    current build gets the first of them, then those before it, then the rest. Withdrawn builds go behind all others
    that can be used, unless somebody asked for them.
    """
    order = list(ranked)
    for line in changes.lines:
        for kind in {_kind(one) for one in order if line_of(one.seat.build) == line.name}:
            places = [i for i, one in enumerate(order) if line_of(one.seat.build) == line.name and _kind(one) == kind]
            seats = sorted((order[i] for i in places), key=lambda one: _age(one.seat.build, line))
            for place, one in zip(places, seats, strict=True):
                order[place] = one
    return sorted(order, key=lambda one: (not one.usable, one.seat.build in changes.withdrawn and not one.wanted))


def on_failure(changes: Changes, build: str, why: str, now: float) -> Changes | None:
    """A build has failed at work: if it came into use within the last hour, the previous one returns. None: no change.

    Call this for failures of the engine, not of a model that no engine can load.
    """
    line = changes.line(line_of(build))
    if line is None or line.current != build or not line.previous or not 0 <= now - line.switched_at < TRIAL:
        return None
    return rolled_back(changes, line.name, f"it failed {now - line.switched_at:.0f} s after the switch: {why}", now)


def rolled_back(changes: Changes, name: str, why: str, now: float) -> Changes:
    """Make the line's previous build current again. Raises UsageError when there is none."""
    line = changes.line(name)
    if line is None or not line.previous:
        raise UsageError(
            f"there is nothing to go back to: no update of {name} is remembered; "
            "'llama-appliance engines use BUILD' switches to another build"
        )
    back, *rest = line.previous
    withdrawn = {one: reason for one, reason in changes.withdrawn.items() if one != back} | {line.current: why}
    changed = structs.replace(changes, withdrawn=withdrawn)
    # No trial for a build that was in use before: there is nothing newer to be suspected.
    return changed.with_line(Line(name=name, current=back, previous=tuple(rest), switched_at=0.0))


def trusted(changes: Changes, build: str) -> Changes:
    """Somebody asked for the build by name: forget why it was withdrawn."""
    if build not in changes.withdrawn:
        return changes
    return structs.replace(changes, withdrawn={one: why for one, why in changes.withdrawn.items() if one != build})


def switched(changes: Changes, line: str, new: str, old: str, now: float) -> tuple[Changes, tuple[str, ...]]:
    """Make the new build current; also return the builds that are no longer kept."""
    before = changes.line(line)
    history = [old, *(before.previous if before is not None else ())]
    previous = tuple(dict.fromkeys(one for one in history if one and one != new))
    entry = Line(name=line, current=new, previous=previous[:KEPT], switched_at=now)
    return trusted(changes, new).with_line(entry), previous[KEPT:]


def check_removable(
    build: str, *, working: Sequence[str], installed: Sequence[str], wanted: Sequence[str], running: Sequence[str],
    force: bool,
) -> None:  # fmt: skip
    """Raises UsageError for a build that cannot be removed, Conflict for one that must not be.

    ``working`` are the builds (and other engines) that a model can be started on now, ``installed`` those that this
    program may remove, ``wanted`` what ``use`` and ``pin`` name, ``running`` the builds of running model processes.
    """
    if build not in installed:
        there = ", ".join(installed) or "none"
        raise UsageError(f"'{build}' is not a build that was installed here; those are: {there}")
    if not [one for one in working if one != build]:
        raise Conflict(
            f"'{build}' is the only engine that is known to work here; 'llama-appliance engines prove' tries the "
            "others, 'llama-appliance engines install' installs one"
        )
    if build in wanted:
        raise Conflict(f"'{build}' was chosen with 'engines use' or 'engines pin'; 'engines use auto' ends that")
    if build in running and not force:
        raise Conflict(
            f"a running model uses '{build}'; unload it first ('llama-appliance unload MODEL'), or add --force"
        )


def _kind(one: Ranked) -> tuple[str, bool, bool, bool]:
    return one.standing, one.wanted, one.seat.on_cpu, one.seat.software


def _age(build: str, line: Line) -> int:
    known = (line.current, *line.previous)
    return known.index(build) if build in known else len(known)
