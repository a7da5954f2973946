"""The events of engines, and what follows from each: the one function that changes the state.

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

from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from appliance.core.engines.builds import UpdateChannel
from appliance.core.engines.proofs import Proof, after_failure, eased, kept
from appliance.core.engines.state import (
    TRIAL,
    BuildLine,
    ContextTrial,
    EngineState,
    Journal,
    ListedDevices,
    RefusedUpdate,
    Step,
    line_of,
    lines_to_roll_back,
)
from appliance.core.machine_look import MachineLook
from appliance.errors import Conflict, UsageError

MAX_PROOFS = 200
"""Number of proofs that are kept, the newest; a machine has a handful of builds and devices."""
KEPT = 2
"""Number of builds before the current one that stay on the disk."""

# ---- what happens: a Proof, a ListedDevices and a ContextTrial are events as they are -------------------------------
NEXT: Mapping[Step, Step] = {"stage": "prove", "prove": "canary", "canary": "place"}


class MachineSeen(Struct, frozen=True):
    """The machine was examined; ``signature`` is that of its drivers and cards."""

    look: MachineLook
    signature: str


class Trusted(Struct, frozen=True):
    """The seat was proven on all its devices after it had failed at work."""

    seat: str


class Pardoned(Struct, frozen=True):
    """A request was to blame for the failure of the seat: it failed elsewhere as well."""

    seat: str
    model: str


class SeatFailed(Struct, frozen=True, kw_only=True):
    """A model could not be started on a seat, or its process died at work.

    ``others`` is True if the model has another seat to go to; if it has none, this one does not wait.
    """

    build: str
    seat: str
    digest: str
    model: str
    why: str
    at: float
    others: bool


class EngineChosen(Struct, frozen=True, kw_only=True):
    """The user chose an engine; ``word`` None: the program chooses. ``builds`` are those that the word names."""

    word: str | None
    model: str | None = None
    """None: for all models."""
    pinned: bool = False
    builds: tuple[str, ...] = ()


class Followed(Struct, frozen=True):
    """The user chose what updates take from now on."""

    channel: UpdateChannel


class Forgotten(Struct, frozen=True):
    """Forget the results about builds with these digests, or about all. The user's choices stay."""

    digests: tuple[str, ...] | None = None


class BuildRemoved(Struct, frozen=True):
    """A build was removed from the disk."""

    build: str
    digests: tuple[str, ...]


Learnt = (
    Proof
    | ListedDevices
    | ContextTrial
    | MachineSeen
    | Trusted
    | Pardoned
    | SeatFailed
    | EngineChosen
    | Followed
    | Forgotten
    | BuildRemoved
)
"""Events that never fail and leave the journal as it is: they may be remembered first and written later."""


class RolledBack(Struct, frozen=True, kw_only=True):
    """The user returns to the build before; see `lines_to_roll_back`. Raises UsageError if there is none."""

    backend: str | None
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


Event = Learnt | RolledBack | UpdateBegun | StepDone | BuildRefused | Restarted


def reduce(state: EngineState, event: Event) -> EngineState:
    """Return the state after the event. The step of its journal is the work to be done once that is on the disk."""
    match event:
        case UpdateBegun():
            return structs.replace(state, journal=_begun(state, event))
        case StepDone():
            return _advanced(state, event.at)
        case BuildRefused():
            return _refused(state, event)
        case Restarted():
            return _restarted(state, event)
        case RolledBack():
            return _rolled_back(state, event)
        case _:
            return _learnt(state, event)


def _learnt(state: EngineState, event: Learnt) -> EngineState:
    match event:
        case Proof():
            others = [one for one in state.proofs if one.key != event.key]
            return structs.replace(state, proofs=(*others, event)[-MAX_PROOFS:])
        case ListedDevices():
            listed = [one for one in state.listed if one.digest != event.digest]
            return structs.replace(state, listed=(*listed, event))
        case ContextTrial(digest=digest, architecture=architecture):
            trials = [one for one in state.contexts if (one.digest, one.architecture) != (digest, architecture)]
            return structs.replace(state, contexts=(*trials, event)[-MAX_PROOFS:])
        case MachineSeen(look, signature):
            return structs.replace(state, look=look, signature=signature)
        case Trusted(seat):
            return structs.replace(
                state, probations=tuple(eased(one) if one.seat == seat else one for one in state.probations)
            )
        case Pardoned(seat, model):
            left = tuple(one for one in state.probations if (one.seat, one.model) != (seat, model))
            return structs.replace(state, probations=left)
        case SeatFailed():
            return _failed(state, event)
        case EngineChosen():
            return _chosen(state, event)
        case Followed(channel):
            return structs.replace(state, channel=channel)
        case Forgotten(digests):
            cleared = _cleared(state, digests)
            return structs.replace(cleared, refused=None) if digests is None else cleared
        case BuildRemoved(build, digests):
            return _cleared(state.without_build(build), digests)


def _cleared(state: EngineState, digests: Collection[str] | None) -> EngineState:
    def stays(digest: str) -> bool:
        return digests is not None and digest not in digests

    return structs.replace(
        state,
        proofs=tuple(one for one in state.proofs if stays(one.key.digest)),
        probations=tuple(one for one in state.probations if stays(one.digest)),
        listed=tuple(one for one in state.listed if stays(one.digest)),
        contexts=tuple(one for one in state.contexts if stays(one.digest)),
    )


def _chosen(state: EngineState, event: EngineChosen) -> EngineState:
    for build in event.builds:
        state = state.trusting(build)
    if event.model is None:
        return structs.replace(state, use=event.word, pinned=event.pinned)
    others = {name: used for name, used in state.models.items() if name != event.model}
    return structs.replace(state, models=others if event.word is None else others | {event.model: event.word})


def _failed(state: EngineState, event: SeatFailed) -> EngineState:
    """A build that came into use within the last hour gives way to the one before it. The pair of seat and model waits.

    Report failures of the engine, not of a model that no engine can load.
    """
    line = state.line(line_of(event.build))
    if line is not None and line.current == event.build and line.previous:
        passed = event.at - line.switched_at
        if 0 <= passed < TRIAL:
            state = _stepped_back(state, line, f"it failed {passed:.0f} s after the switch: {event.why}")
    if not event.others:
        return state
    pair = (event.seat, event.model)
    before = next((one for one in state.probations if (one.seat, one.model) == pair), None)
    probation = after_failure(
        before, seat=event.seat, digest=event.digest, model=event.model, why=event.why, now=event.at
    )
    left = [one for one in kept(state.probations, event.at) if (one.seat, one.model) != pair]
    return structs.replace(state, probations=(*left, probation))


def _rolled_back(state: EngineState, event: RolledBack) -> EngineState:
    lines = lines_to_roll_back(state, event.backend, event.here)
    if not lines or not lines[-1].previous:
        raise UsageError(
            f"there is nothing to go back to: no update of {lines[-1].name if lines else event.backend or 'any build'} "
            "is remembered; 'llama-appliance engines use BUILD' switches to another build"
        )
    return _stepped_back(state, lines[-1], event.why)


def _stepped_back(state: EngineState, line: BuildLine, why: str) -> EngineState:
    """Make the line's previous build current again."""
    back, *rest = line.previous
    withdrawn = {**state.trusting(back).withdrawn, line.current: why}
    # No trial for a build that was in use before: there is nothing newer to be suspected.
    entry = BuildLine(name=line.name, current=back, previous=tuple(rest), switched_at=0.0)
    return structs.replace(state, withdrawn=withdrawn).with_line(entry)


# ---- an update -------------------------------------------------------------------------------------------------------


def _begun(state: EngineState, event: UpdateBegun) -> Journal:
    if state.journal is not None:
        raise Conflict(
            f"an update to {state.journal.build} was begun and not finished; "
            "'llama-appliance engines probe' completes or removes it"
        )
    line = line_of(event.build)
    return Journal(line=line, build=event.build, old=event.old, step="stage", began=event.at, held=event.held)


def _advanced(state: EngineState, now: float) -> EngineState:
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


def _switched(state: EngineState, journal: Journal, now: float) -> EngineState:
    before = state.line(journal.line)
    history = [journal.old, *(before.previous if before is not None else ())]
    previous = tuple(dict.fromkeys(one for one in history if one and one != journal.build))
    entry = BuildLine(name=journal.line, current=journal.build, previous=previous[:KEPT], switched_at=now)
    surplus = tuple(build for build in previous[KEPT:] if build not in journal.held)
    tidying = structs.replace(journal, step="tidy", surplus=surplus)
    return structs.replace(state.trusting(journal.build).with_line(entry), journal=tidying, refused=None)


def _refused(state: EngineState, event: BuildRefused) -> EngineState:
    journal = state.journal
    if journal is None or journal.step in ("tidy", "discard"):
        return state
    if event.why:
        refused = RefusedUpdate(build=journal.build, old=journal.old, why=event.why, at=event.at)
        state = structs.replace(state, refused=refused)
    return _at_step(state, "discard")


def _restarted(state: EngineState, event: Restarted) -> EngineState:
    journal = state.journal
    if journal is None:
        return state
    is_unproven = journal.step in NEXT or (journal.step == "place" and not event.is_there)
    return _at_step(state, "discard") if is_unproven else state


def _at_step(state: EngineState, step: Step) -> EngineState:
    assert state.journal is not None
    return structs.replace(state, journal=structs.replace(state.journal, step=step))
