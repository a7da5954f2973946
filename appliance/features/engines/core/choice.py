"""Chooses the seat: what engines offer, in an order with reasons. The first difference in these rules decides:

1. The user's choice (a seat, a build, or a backend, for all models or for one) goes first; `EngineWish.pinned` leaves
   the others out.
2. Damaged builds and seats that failed their proof are out. A pair on probation goes last, and is still tried when
   nothing else is left.
3. Software renderers go behind all others. Proven seats go before those that nobody has tried; among those the
   processor's go before graphics cards', which can list a device and compute garbage.
4. GPU builds that compute on the processor go behind the others: in those made for it less can go wrong.
5. Among the proven: the nominal request's time (`Proof.nominal_seconds`). A seat must be a tenth faster to go before
   one whose place is better.
6. The place: the order in which builds were found (named, shipped, installed, built here, PATH, embedded).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from msgspec import Struct, structs

from appliance.core.versions import line_of
from appliance.errors import Conflict, UsageError
from appliance.features.engines.core.listing import CPU, Device
from appliance.features.engines.core.standing import Seat, Standing, standing_of
from appliance.features.engines.core.state import EngineState

MARGIN = 0.9  # a seat goes before a better placed one if it takes less than this part of its time

NO_CARDS = ("cpu", "unknown")  # backends of builds that are not made for graphics cards, as far as known

AUTO = "auto"  # the word with which a user leaves the choice to the program


class EngineWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's choice, by ``engines use`` or ``engines pin``."""

    engine: str  # a seat's id, a build's id, a backend, or a part of one (``cuda``); or `AUTO`
    model: str | None = None  # None: for all models
    pinned: bool = False  # use nothing else

    def matches(self, seat: Seat) -> bool:
        if seat.backend != "cpu" and seat.on_cpu:
            return self.engine in (seat.id, seat.build)
        prefixed = self.engine.isalpha() and seat.backend.startswith(self.engine)
        return self.engine in (seat.id, seat.build, seat.backend) or prefixed


class Ranked(Struct, frozen=True, kw_only=True):
    """One seat with its standing. ``why`` explains it in words, with figures if there are any."""

    seat: Seat
    standing: Standing
    why: str
    wanted: bool = False
    seconds: float | None = None  # the nominal request's time

    @property
    def usable(self) -> bool:
        return self.standing not in ("failed", "damaged")


def seats_of(build: Seat, listed: Sequence[Device] | None, cpu: Device, failed: Collection[str] = ()) -> list[Seat]:
    """Return the seats of a build, which is a seat without devices, the best one first.

    ``listed`` are its devices; None: it has not been asked yet. Cards of one kind (with or without memory of their own)
    work together. A device in ``failed`` (by id) and a software renderer have seats of their own, so that they can be
    shown and requested without spoiling the others.
    """
    if build.fault:
        return [build]
    if listed is None:
        return [structs.replace(build, devices=(cpu,) if build.backend == CPU.lower() else ())]
    good = [device for device in listed if not device.software and device.id not in failed]
    groups = [[d for d in good if not d.integrated], [d for d in good if d.integrated]]
    alone = [[device] for device in listed if device not in good]
    spare = bool(listed) or build.backend not in NO_CARDS
    seats = [structs.replace(build, devices=tuple(group)) for group in (*groups, *alone) if group]
    return [*seats, structs.replace(build, devices=(cpu,), spare=spare)]


def device_flags(seat: Seat, listed: Sequence[Device]) -> tuple[str, ...]:
    """Return the engine's flags for its devices; none if it has no choice, or if no choice is known."""
    if not seat.devices or not listed:
        return ()
    names = "none" if seat.on_cpu else ",".join(device.name for device in seat.devices)
    return ("--device", names)


def rank(
    seats: Sequence[Seat],
    state: EngineState,
    *,
    wanted: EngineWish | None = None,
    model: str = "",
    now: float = 0.0,
) -> list[Ranked]:
    """Return every seat, best first for this model; unusable ones at the end."""
    waiting = {one.seat: one for one in state.probations if one.model == model and one.holds(now)}
    judged: list[Ranked] = []
    for seat in seats:
        proofs = state.proofs_of(seat, now)
        standing, why = standing_of(seat, proofs, waiting.get(seat.id), now)
        is_wanted = wanted is not None and wanted.matches(seat)
        seconds = max((proof.nominal_seconds or 0.0 for proof in proofs), default=0.0) or None
        if standing not in ("proven", "probation"):
            seconds = None
        if is_wanted or wanted is None or not wanted.pinned:
            judged.append(Ranked(seat=seat, standing=standing, why=why, wanted=is_wanted, seconds=seconds))
    placed = sorted(judged, key=lambda one: (_group(one), one.seat.place, one.seat.id))
    return arrange([one for _, alike in groupby(placed, _group) for one in _by_speed(list(alike))], state)


def arrange(ranked: Sequence[Ranked], state: EngineState) -> list[Ranked]:
    """Apply what was decided about lines to the order of `rank`.

    The places that one line's seats have, of one standing and on the same side (processor or cards), stay. The
    line's current build gets the first of them, then those before it, then the rest. Withdrawn builds go behind
    all others that can be used, unless somebody asked for them.
    """
    order = list(ranked)
    for line in state.lines:
        ages = {build: age for age, build in enumerate((line.current, *line.previous))}
        alike: dict[tuple[object, ...], list[int]] = {}
        for place, one in enumerate(order):
            if line_of(one.seat.build) == line.name:
                kind = (one.standing, one.wanted, one.seat.on_cpu, one.seat.software)
                alike.setdefault(kind, []).append(place)
        for places in alike.values():
            seats = sorted((order[place] for place in places), key=lambda one: ages.get(one.seat.build, len(ages)))
            for place, one in zip(places, seats, strict=True):
                order[place] = one
    return sorted(order, key=lambda one: (not one.usable, one.seat.build in state.withdrawn and not one.wanted))


def best(ranked: Sequence[Ranked], tried: Collection[str] = ()) -> Ranked | None:
    """Return the first usable seat that is not among the ``tried`` ones."""
    return next((one for one in ranked if one.usable and one.seat.id not in tried), None)


def check_choice(wish: EngineWish, ranked: Sequence[Ranked], *, only_proven: bool) -> str:
    """Return why the engine that a user chooses cannot be used now; empty: it can. ``ranked``: the order for its word.

    Raises UsageError for a word that means no engine, for pinning one that cannot be used, and, with ``only_proven``,
    for one that is not proven.
    """
    word, pinned = wish.engine, wish.pinned
    if pinned and word == AUTO:
        raise UsageError("'auto' cannot be pinned; 'engines use auto' leaves the choice to the program")
    if pinned and wish.model is not None:
        raise UsageError("one model cannot be pinned; 'engines use WORD --model MODEL' makes it prefer an engine")
    if word == AUTO:
        return ""
    seats = [one.seat for one in ranked]
    meant = [one for one in ranked if wish.matches(one.seat)]
    if not meant and any(seat.backend == word for seat in seats):
        raise UsageError(
            f"the {word} build sees no device of its own here, and would compute on the processor; "
            "'llama-appliance engines probe' lists the devices, and 'doctor' why"
        )
    if not meant:
        known = sorted({seat.backend for seat in seats} | {seat.id for seat in seats})
        raise UsageError(f"'{word}' is not an engine of this machine; it has {', '.join(known) or 'none'}")
    if only_proven and all(one.standing != "proven" for one in meant):
        raise UsageError(
            f"{meant[0].seat.id} is not proven here: {meant[0].why}; POST /api/engines/prove tries it, and "
            f"'llama-appliance engines use {word}' chooses it untried"
        )
    if any(one.usable for one in meant):
        return ""
    told = f"{meant[0].seat.id} cannot be used: {meant[0].why}"
    if pinned:
        damaged = meant[0].standing == "damaged"
        then = "'engines install' puts it right" if damaged else f"'engines prove {word}' tries it again"
        raise UsageError(f"{told}; {then}")
    return told


def check_removable(
    build: str, ranked: Sequence[Ranked], *, installed: Sequence[str], wanted: Sequence[str], running: Sequence[str],
    force: bool,
) -> None:  # fmt: skip
    """Raises UsageError for a build that cannot be removed, Conflict for one that must not be.

    ``installed`` are the builds that this program may remove, ``wanted`` what ``use`` and ``pin`` name, ``running`` the
    builds of running model processes. One more has to work: a proven one, or an untried one if none is proven.
    """
    if build not in installed:
        there = ", ".join(installed) or "none"
        raise UsageError(f"'{build}' is not a build that was installed here; those are: {there}")
    usable = [one for one in ranked if one.usable]
    working = [one for one in usable if one.standing == "proven"] or usable
    if all(one.seat.build == build for one in working):
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


def _group(one: Ranked) -> tuple[int, ...]:
    """Rules 1 to 4."""
    last = {"proven": 0, "untried": 0, "probation": 1, "failed": 2, "damaged": 2}[one.standing]
    untried = one.standing == "untried"
    return (last, not one.wanted, one.seat.software, untried, untried and not one.seat.on_cpu, one.seat.spare)


def _by_speed(rest: list[Ranked]) -> Iterator[Ranked]:
    """Rule 5, in one group: the fastest goes first unless a better placed one takes hardly longer; and so on."""
    while rest:
        least = min((one.seconds for one in rest if one.seconds is not None), default=None)
        first = rest[0] if least is None else next(one for one in rest if one.seconds and one.seconds * MARGIN <= least)
        rest.remove(first)
        yield first
