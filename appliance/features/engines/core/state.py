"""Everything that is remembered about engines: one file, one value. `reduce` is the only way to change it.

A line of `core.versions` is the builds for one platform and backend, ``linux-x64-cpu``. Its current build goes before
the others of the line. A line that nobody has changed has none, and its builds are ranked like any others. The events
of updates and of the way back are in `core.versions`; the others are what was learnt, and what the user chose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec import Struct, structs

from appliance.core import versions
from appliance.core.machine_look import MachineLook
from appliance.core.versions import NOTHING, VersionEvent, VersionState
from appliance.features.engines.core.builds import UpdateChannel
from appliance.features.engines.core.standing import (
    EASED,
    ContextTrial,
    ListedDevices,
    Probation,
    Proof,
    Seat,
    SeatFailed,
    after_failure,
    key_of,
)

MOST_KEPT = 200  # facts of one kind that are kept, the newest; a machine has a handful of builds and devices
F = TypeVar("F", Proof, Probation, ListedDevices, ContextTrial)


class EngineState(VersionState, frozen=True, kw_only=True):
    """The whole of it. Each event makes a new one. Withdrawn builds go behind all others."""

    proofs: tuple[Proof, ...] = ()
    probations: tuple[Probation, ...] = ()
    listed: tuple[ListedDevices, ...] = ()
    look: MachineLook | None = None  # the machine when it was last examined
    signature: str = ""  # of its drivers and cards then: while it is unchanged, ``look`` and ``listed`` are valid
    use: str | None = None  # `EngineWish.engine` for all models, set by ``engines use``
    pinned: bool = False  # ``use`` and nothing else (``engines pin``): no fallback, no update
    models: Mapping[str, str] = NOTHING  # the same by model id
    channel: UpdateChannel = "latest"  # the builds that ``engines update`` takes, as somebody chose
    contexts: tuple[ContextTrial, ...] = ()

    @property
    def system(self) -> str:
        """`MachineLook.system` of the machine when it was last examined; empty: never."""
        return self.look.system if self.look is not None else ""

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Return every word chosen by ``use`` and ``pin``, for all models or for one."""
        return tuple(word for word in (self.use, *self.models.values()) if word)

    def proofs_of(self, seat: Seat, now: float) -> tuple[Proof, ...]:
        """Return the proofs that are valid for the seat now, one for each device that has one."""
        known = {proof.key: proof for proof in self.proofs if proof.holds(now)}
        found = (known.get(key_of(seat, device, self.system)) for device in seat.devices)
        return tuple(proof for proof in found if proof is not None)

    def context_trial(self, digest: str, architecture: str) -> ContextTrial | None:
        """Return the trial of keeping contexts with this build and architecture; None: there was none."""
        return next((one for one in self.contexts if one.key == (digest, architecture)), None)


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


class EngineChosen(Struct, frozen=True, kw_only=True):
    """The user chose an engine; ``word`` None: the program chooses. ``builds`` are those that the word names."""

    word: str | None
    model: str | None = None  # None: for all models
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


Fact = Proof | ListedDevices | ContextTrial | MachineSeen | Trusted | Pardoned | SeatFailed
Learnt = Fact | EngineChosen | Followed | Forgotten | BuildRemoved
"""Events that never fail and leave the journal as it is: they may be remembered first and written later. What is kept
as it was learnt is its own event, as a `Proof` is."""
Event = Learnt | VersionEvent


def reduce(state: EngineState, event: Event) -> EngineState:
    """Return the state after the event. The step of its journal is the work to be done once that is on the disk."""
    match event:
        case Proof():
            return structs.replace(state, proofs=_with(event, state.proofs))
        case ListedDevices():
            return structs.replace(state, listed=_with(event, state.listed))
        case ContextTrial():
            return structs.replace(state, contexts=_with(event, state.contexts))
        case MachineSeen(look, signature):
            return structs.replace(state, look=look, signature=signature)
        case SeatFailed():
            return _failed(state, event)
        case Trusted(seat):
            kept = tuple(
                structs.replace(one, until=min(one.until, one.since + EASED)) if one.seat == seat else one
                for one in state.probations
            )
            return structs.replace(state, probations=kept)
        case Pardoned(seat, model):
            kept = tuple(one for one in state.probations if one.key != (seat, model))
            return structs.replace(state, probations=kept)
        case EngineChosen():
            return _chosen(state, event)
        case Followed(channel):
            return structs.replace(state, channel=channel)
        case Forgotten(digests):
            return _forgotten(state if digests is not None else structs.replace(state, refused=None), digests)
        case BuildRemoved(build, digests):
            return _forgotten(state.without_build(build), digests)
        case _:
            return versions.reduce(state, event)


def _failed(state: EngineState, event: SeatFailed) -> EngineState:
    """A build that came into use within the last hour gives way to the one before it. The pair of seat and model waits.

    Report failures of the engine, not of a model that no engine can load.
    """
    state = versions.reduce(state, event)
    if not event.others:
        return state
    before = next((one for one in state.probations if one.key == (event.seat, event.model)), None)
    kept = tuple(one for one in state.probations if one.counts(event.at))
    return structs.replace(state, probations=_with(after_failure(before, event), kept))


def _chosen(state: EngineState, event: EngineChosen) -> EngineState:
    for build in event.builds:
        state = state.trusting(build)
    if event.model is None:
        return structs.replace(state, use=event.word, pinned=event.pinned)
    others = {name: used for name, used in state.models.items() if name != event.model}
    return structs.replace(state, models=others if event.word is None else others | {event.model: event.word})


def _forgotten(state: EngineState, digests: Collection[str] | None) -> EngineState:
    """Return the state without the facts about builds with these digests; None: about any."""

    def kept(known: tuple[F, ...]) -> tuple[F, ...]:
        return tuple(one for one in known if digests is not None and one.digest not in digests)

    return structs.replace(
        state,
        proofs=kept(state.proofs),
        probations=kept(state.probations),
        listed=kept(state.listed),
        contexts=kept(state.contexts),
    )


def _with(fact: F, known: tuple[F, ...]) -> tuple[F, ...]:
    """The last word on a key counts."""
    return (*(one for one in known if one.key != fact.key), fact)[-MOST_KEPT:]
