"""Versions of a thing side by side: which is in use, which were before it, and the update under way.

The things are builds of an engine, and the program itself. Each version has an id, and is called a build here, whatever
it is of. A *line* is the versions that replace each other: ``linux-x64-cpu`` of ``linux-x64-cpu/b11434``, ``programs``
of ``programs/0.2.0-…``. A line that an update or a rollback has been through has a current build.

`reduce` takes the state and an event, and returns the new state. The step of its journal is the work to be done now.
One rule makes an update survive a kill at any instant: **the new state is on the disk before its work begins, and the
work is done before `StepDone` is reported.** A program that finds a journal therefore knows that the work of its step
may be half done, and `Restarted` says how to go on.

    UpdateBegun -> stage -> prove -> canary -> place -> (the switch) tidy -> no journal
                     |  Refused, or killed: discard -> no journal

Until *place* ends, the new build lies where no search for builds looks, and the old one is in use. *place* is one
renaming of a folder. The switch is the write that follows it. So there is no instant without a build in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypeVar

from msgspec import Struct, structs

from appliance.errors import Conflict, UsageError

TRIAL = 3600.0  # seconds after a switch within which a failure of the new build restores the old one
KEPT = 2  # builds before the current one that stay on the disk
NOTHING: Mapping[str, str] = {}

Step = Literal["stage", "prove", "canary", "place", "tidy", "discard"]
Role = Literal["current", "previous", "withdrawn", ""]
NEXT: Mapping[Step, Step] = {"stage": "prove", "prove": "canary", "canary": "place"}


def numbers_of(version: str) -> tuple[int, ...]:
    """Parse ``b11434`` -> (11434,), ``550.54.14`` -> (550, 54, 14): versions compare by their numbers."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]{1,18}", version))


def line_of(build: str) -> str:
    """Return ``linux-x64-cpu`` of ``linux-x64-cpu/b11434``; anything but a build is a line of its own."""
    name, slash, release = build.partition("/")
    return name if slash and name and release and "/" not in release else build


class BuildLine(Struct, frozen=True, kw_only=True):
    """One line with its history."""

    name: str
    current: str  # a build's id
    previous: tuple[str, ...] = ()  # ids, the one before the current first
    switched_at: float = 0.0  # Unix time at which the current build came into use


class Journal(Struct, frozen=True, kw_only=True):
    """The update under way. ``step`` is the current step, or the one at which the program was killed.

    The work of a step may be carried out twice without harm. *stage*: have the build, complete, among the staged ones,
    unless it is in its place. *prove*: find out whether it is what it should be, and works. *canary*: find out whether
    it does the user's own work. *place*: move it to its place by one rename, unless it is there. *tidy*: remove the
    surplus, then everything that is staged. *discard*: remove everything that is staged.
    """

    line: str
    build: str  # the new build's id
    old: str  # the id of the line's build that is in use until the switch
    step: Step
    began: float
    held: tuple[str, ...] = ()  # builds that the user asked for by name; they stay on the disk
    surplus: tuple[str, ...] = ()  # ids of builds to remove now that the switch is done


class RefusedUpdate(Struct, frozen=True, kw_only=True):
    """The last update that was tried and not taken, since one was taken."""

    build: str  # the new build's id
    old: str  # the id of the build that stayed in use
    why: str
    at: float


class VersionState(Struct, frozen=True, kw_only=True):
    """The memory of versions. Each event makes a new one."""

    lines: tuple[BuildLine, ...] = ()
    withdrawn: Mapping[str, str] = NOTHING  # builds that were rolled back, with the reason
    journal: Journal | None = None
    refused: RefusedUpdate | None = None

    def line(self, name: str) -> BuildLine | None:
        return next((line for line in self.lines if line.name == name), None)

    def role(self, build: str) -> Role:
        """Return a build's place in its line; empty: nobody has decided anything about it."""
        if build in self.withdrawn:
            return "withdrawn"
        line = self.line(line_of(build))
        if line is None:
            return ""
        return "current" if line.current == build else "previous" if build in line.previous else ""

    def trial_end(self, build: str, now: float) -> float | None:
        """Return the Unix time at which the build's first hour ends; None: it has ended, or nothing was before it."""
        line = self.line(line_of(build))
        if line is None or line.current != build or not line.previous or not 0 <= now - line.switched_at < TRIAL:
            return None
        return line.switched_at + TRIAL

    def with_line(self, line: BuildLine) -> Self:
        others = [one for one in self.lines if one.name != line.name]
        return structs.replace(self, lines=(*others, line))

    def without_build(self, build: str) -> Self:
        """The build is gone from the disk. A line whose current build it was returns to the previous one."""
        line = self.line(line_of(build))
        changed = self.trusting(build)
        if line is None:
            return changed
        left = [one for one in (line.current, *line.previous) if one != build]
        if not left:
            return structs.replace(changed, lines=tuple(one for one in self.lines if one.name != line.name))
        at = line.switched_at if left[0] == line.current else 0.0
        return changed.with_line(BuildLine(name=line.name, current=left[0], previous=tuple(left[1:]), switched_at=at))

    def trusting(self, build: str) -> Self:
        """Forget why the build was withdrawn."""
        if build not in self.withdrawn:
            return self
        return structs.replace(self, withdrawn={one: why for one, why in self.withdrawn.items() if one != build})


S = TypeVar("S", bound=VersionState)


def lines_to_roll_back(state: VersionState, kind: str | None, here: Sequence[str]) -> list[BuildLine]:
    """Return the lines of a kind, or all, the most recently switched one last.

    A line is of the kind ``cpu`` if its name ends with ``-cpu``. ``here`` are the builds that are on the disk and
    whole. Earlier builds that are not are left out: the program cannot return to those.
    """
    for build in [build for line in state.lines for build in line.previous if build not in here]:
        state = state.without_build(build)
    found = [line for line in state.lines if kind is None or line.name.endswith(f"-{kind}")]
    return sorted(found, key=lambda line: line.switched_at)


# ---- events ----------------------------------------------------------------------------------------------------------


class BuildFailed(Struct, frozen=True, kw_only=True):
    """A build failed at work. One that came into use within the last hour gives way to the one before it."""

    build: str
    why: str
    at: float


class RolledBack(Struct, frozen=True, kw_only=True):
    """The user returns to the build before; see `lines_to_roll_back`. Raises UsageError if there is none."""

    kind: str | None
    here: tuple[str, ...]
    why: str


class UpdateBegun(Struct, frozen=True, kw_only=True):
    """An update to ``build`` begins; ``old`` is in use, and builds that are ``held`` are never removed by it.

    Raises Conflict if another update was not finished.
    """

    build: str
    old: str
    at: float
    held: tuple[str, ...] = ()


class StepDone(Struct, frozen=True):
    """The work of the journal's step is done."""

    at: float


class BuildRefused(Struct, frozen=True):
    """The new build is not taken. ``why`` empty: the update was interrupted, which says nothing of the build."""

    why: str = ""
    at: float = 0.0


class Restarted(Struct, frozen=True, kw_only=True):
    """A program starts. ``is_there``: the journal's build is complete, among the staged ones or in its place.

    A build that is not yet known to work is thrown away. An update that had passed every test is completed.
    """

    is_there: bool


VersionEvent = BuildFailed | RolledBack | UpdateBegun | StepDone | BuildRefused | Restarted


def reduce(state: S, event: VersionEvent) -> S:
    """Return the state after the event. The step of its journal is the work to be done once that is on the disk."""
    match event:
        case UpdateBegun():
            return _begun(state, event)
        case StepDone(at):
            return _advanced(state, at)
        case BuildRefused():
            return _refused(state, event)
        case Restarted():
            return _restarted(state, event)
        case RolledBack():
            return _rolled_back(state, event)
        case BuildFailed():
            return _failed(state, event)


def _failed(state: S, event: BuildFailed) -> S:
    line = state.line(line_of(event.build))
    if line is None or state.trial_end(event.build, event.at) is None:
        return state
    return _stepped_back(state, line, f"it failed {event.at - line.switched_at:.0f} s after the switch: {event.why}")


def _rolled_back(state: S, event: RolledBack) -> S:
    lines = lines_to_roll_back(state, event.kind, event.here)
    if not lines or not lines[-1].previous:
        what = lines[-1].name if lines else event.kind or "any build"
        raise UsageError(f"there is nothing to go back to: no update of {what} is remembered")
    return _stepped_back(state, lines[-1], event.why)


def _stepped_back(state: S, line: BuildLine, why: str) -> S:
    """Make the line's previous build current again."""
    back, *rest = line.previous
    withdrawn = {**state.trusting(back).withdrawn, line.current: why}
    # No trial for a build that was in use before: there is nothing newer to be suspected.
    entry = BuildLine(name=line.name, current=back, previous=tuple(rest), switched_at=0.0)
    return structs.replace(state, withdrawn=withdrawn).with_line(entry)


def _begun(state: S, event: UpdateBegun) -> S:
    if state.journal is not None:
        raise Conflict(
            f"an update to {state.journal.build} was begun and not finished; the next command that changes builds "
            "completes or removes it"
        )
    line = line_of(event.build)
    journal = Journal(line=line, build=event.build, old=event.old, step="stage", began=event.at, held=event.held)
    return structs.replace(state, journal=journal)


def _advanced(state: S, now: float) -> S:
    """After *place* the new build is the line's current one; after *tidy* and *discard* there is no journal."""
    journal = state.journal
    if journal is None:
        return state
    match journal.step:
        case "stage" | "prove" | "canary":
            return _at_step(state, NEXT[journal.step])
        case "place":
            return _switched(state, journal, now)
        case "tidy" | "discard":
            return structs.replace(state, journal=None)


def _switched(state: S, journal: Journal, now: float) -> S:
    before = state.line(journal.line)
    history = [journal.old, *(before.previous if before is not None else ())]
    previous = tuple(dict.fromkeys(one for one in history if one and one != journal.build))
    entry = BuildLine(name=journal.line, current=journal.build, previous=previous[:KEPT], switched_at=now)
    surplus = tuple(build for build in previous[KEPT:] if build not in journal.held)
    tidying = structs.replace(journal, step="tidy", surplus=surplus)
    return structs.replace(state.trusting(journal.build).with_line(entry), journal=tidying, refused=None)


def _refused(state: S, event: BuildRefused) -> S:
    journal = state.journal
    if journal is None or journal.step in ("tidy", "discard"):
        return state
    if event.why:
        refused = RefusedUpdate(build=journal.build, old=journal.old, why=event.why, at=event.at)
        state = structs.replace(state, refused=refused)
    return _at_step(state, "discard")


def _restarted(state: S, event: Restarted) -> S:
    journal = state.journal
    if journal is None:
        return state
    is_unproven = journal.step in NEXT or (journal.step == "place" and not event.is_there)
    return _at_step(state, "discard") if is_unproven else state


def _at_step(state: S, step: Step) -> S:
    assert state.journal is not None
    return structs.replace(state, journal=structs.replace(state.journal, step=step))
