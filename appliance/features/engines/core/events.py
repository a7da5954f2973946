"""The events of engines, and what follows from each: the one function that changes the state.

Those of updates and of the way back are in `core.versions`. The others are what was learnt, and what the user chose.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, structs

from appliance.core import versions
from appliance.core.machine_look import MachineLook
from appliance.core.versions import BuildFailed, VersionEvent
from appliance.features.engines.core.builds import UpdateChannel
from appliance.features.engines.core.proofs import Proof, after_failure, eased, kept
from appliance.features.engines.core.state import ContextTrial, EngineState, ListedDevices

MAX_PROOFS = 200
"""Number of proofs that are kept, the newest; a machine has a handful of builds and devices."""

# ---- what happens: a Proof, a ListedDevices and a ContextTrial are events as they are -------------------------------


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


Event = Learnt | VersionEvent


def reduce(state: EngineState, event: Event) -> EngineState:
    """Return the state after the event. The step of its journal is the work to be done once that is on the disk."""
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
        case _:
            return versions.reduce(state, event)


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
    state = versions.reduce(state, BuildFailed(build=event.build, why=event.why, at=event.at))
    if not event.others:
        return state
    pair = (event.seat, event.model)
    before = next((one for one in state.probations if (one.seat, one.model) == pair), None)
    probation = after_failure(
        before, seat=event.seat, digest=event.digest, model=event.model, why=event.why, now=event.at
    )
    left = [one for one in kept(state.probations, event.at) if (one.seat, one.model) != pair]
    return structs.replace(state, probations=(*left, probation))
