"""The table of ``engines ls`` and ``GET /api/engines``: every build on every device, which one is used, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from appliance.core.machine_look import NOTHING
from appliance.core.versions import Role
from appliance.features.engines.core.builds import EngineOffer, UpdateChannel
from appliance.features.engines.core.choice import Ranked, best
from appliance.features.engines.core.listing import Device
from appliance.features.engines.core.standing import Standing
from appliance.features.engines.core.state import EngineState
from appliance.features.engines.installing import offers_here, versions
from appliance.features.engines.owner import Engines


class SeatRow(Struct, frozen=True, kw_only=True):
    """A build on devices. Speeds in tokens per second of the measuring model, None where they were not measured."""

    id: str
    devices: tuple[str, ...]
    standing: Standing
    why: str
    prompt_speed: float | None = None
    generation_speed: float | None = None
    asked_for: bool = False  # by ``engines use`` or ``engines pin``
    tried_at: float | None = None  # Unix time of its devices' last trial that still counts; None: none does
    used: bool = False  # a model that is loaded now gets it


class BuildRow(Struct, frozen=True, kw_only=True):
    """A build, or another engine."""

    id: str
    backend: str
    version: str | None
    release: str = ""  # the version of llama.cpp that it is, ``0.6.0``; empty for a build between two
    source: str
    folder: str | None = None
    damage: str = ""
    role: Role = ""  # empty where no update has been
    withdrawn: str = ""  # the reason why it was rolled back; empty if it was not
    seats: tuple[SeatRow, ...] = ()


class Table(Struct, frozen=True, kw_only=True):
    """Everything. Builds in the order in which they were found, their seats best first."""

    builds: tuple[BuildRow, ...]
    used: str | None = None  # the seat that a model gets of which nothing is known
    reason: str = ""  # why that one, in a sentence
    order: tuple[str, ...] = ()  # all seats that can be used, best first
    use: str | None = None
    pinned: bool = False
    models: Mapping[str, str] = NOTHING  # choices for single models, by ``use`` and ``pin`` with --model
    channel: UpdateChannel = "latest"  # the channel of ``engines update``
    update: str | None = None  # the build that an update is under way to
    running: Mapping[str, str] = NOTHING  # models that have a process, and the seat of each
    offers: tuple[EngineOffer, ...] = ()  # builds for graphics cards that none of these can use
    trying: str = ""  # the seat under trial; empty: none
    may_choose: bool = False  # true if the server lets its clients choose (``serve --admin``)
    problems: tuple[str, ...] = ()  # drivers that are there and do not answer
    server: str | None = None  # the server whose view this is; None: the command's own


async def table(engines: Engines, *, running: Mapping[str, str] = NOTHING, may_choose: bool = False) -> Table:
    """Return what is known now. ``running``: models that have a process, and the seat of each."""
    await engines.sync()  # another program may have chosen, or be at an update
    ranked, state, now, catalogue = engines.ranked(), engines.state, time.time(), versions()
    used = best(ranked)

    def row(one: Ranked) -> SeatRow:
        proofs = state.proofs_of(one.seat, now)
        speeds = [proof for proof in proofs if proof.ok]
        return SeatRow(
            id=one.seat.id,
            devices=tuple(map(_in_words, one.seat.devices)),
            standing=one.standing,
            why=one.why,
            prompt_speed=min((proof.prompt_speed for proof in speeds if proof.prompt_speed), default=None),
            generation_speed=min((proof.generation_speed for proof in speeds if proof.generation_speed), default=None),
            tried_at=max((proof.at for proof in proofs), default=None),
            asked_for=one.wanted,
            used=used is not None and one.seat.id == used.seat.id,
        )

    return Table(
        builds=tuple(
            BuildRow(
                id=engine.id,
                backend=engine.backend,
                version=engine.version,
                release=catalogue.version_of(engine.version or ""),
                source=engine.source,
                folder=engine.folder,
                damage=next((one.seat.damage for one in ranked if one.seat.build == engine.id), engine.damage),
                role=state.role(engine.id),
                withdrawn=state.withdrawn.get(engine.id, ""),
                seats=tuple(
                    row(one) for one in ranked if one.seat.build == engine.id and one.seat.digest == engine.digest
                ),
            )
            for engine in engines.engines
        ),
        used=used.seat.id if used is not None else None,
        reason=reason(ranked, state),
        order=tuple(one.seat.id for one in ranked if one.usable),
        use=state.use,
        pinned=state.pinned,
        models=state.models,
        channel=state.channel,
        update=state.journal.build if state.journal is not None else None,
        running=running,
        offers=offers_here(state.look, engines.engines),
        trying=engines.trying,
        may_choose=may_choose,
        problems=state.look.problems if state.look is not None else (),
    )


def reason(ranked: Sequence[Ranked], state: EngineState) -> str:
    """Why the first seat is the one that is used."""
    used = best(ranked)
    if used is None:
        return "no engine can be used: see why at each of them"
    if used.wanted:
        return f"'{state.use}' was asked for by 'engines {'pin' if state.pinned else 'use'}'"
    asked = f"'{state.use}' was asked for and cannot be used; " if state.use not in (None, "auto") else ""
    match used.standing:
        case "proven":
            others = sum(one.standing == "proven" for one in ranked)
            if state.role(used.seat.build) == "current" and others > 1:
                return f"{asked}the best of {others} that are proven here; an update brought it, and went well"
            return f"{asked}the best of {others} that are proven here" if others > 1 else f"{asked}proven here"
        case "untried":
            return f"{asked}a first choice: nothing is proven here yet ('engines prove' does it now)"
        case _:
            return f"{asked}nothing better is left: {used.why}"


def _in_words(device: Device) -> str:
    return device.name if device.description in ("", device.name) else f"{device.name} ({device.description})"
