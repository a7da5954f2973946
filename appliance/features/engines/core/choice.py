"""Chooses the seat: the seats that engines offer, in an order with reasons.

A *seat* is a build on the devices that it gets. The rules, in which the first difference decides:

1. The user's choice (a seat, a build, or a backend, for all models or for one) goes first; `WantedEngine.only` leaves
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

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from appliance.errors import UsageError
from appliance.features.engines.core.listing import CPU, Device
from appliance.features.engines.core.proofs import Probation, Proof

MARGIN = 0.9
"""A seat goes before a better placed one if it takes less than this part of its time."""

NO_CARDS = ("cpu", "unknown")
"""Backends of builds that are not made for graphics cards, as far as known."""

AUTO = "auto"
"""The word with which a user leaves the choice to the program."""

Standing = Literal["proven", "untried", "probation", "failed", "damaged"]


class Seat(Struct, frozen=True, kw_only=True):
    """A build on devices: only the processor, or GPUs (with the processor's help). None: the build's own choice."""

    build: str
    """The build's id; ``embedded``, or the path of a program that is not a build."""
    backend: str
    digest: str
    place: int
    """The rank of the place where the build was found: 0 is the best."""
    devices: tuple[Device, ...] = ()
    damage: str = ""
    """The problem with its files; empty: none."""
    fault: str = ""
    """The reason why it cannot even list its devices."""
    late: str = ""
    """The reason why it has not listed its devices yet: it goes last, and is still tried when nothing else is left."""
    spare: bool = False
    """A build for graphics cards, on the processor."""

    @property
    def id(self) -> str:
        """``linux-x64-vulkan/b11434:Vulkan0``, unique on this machine."""
        return f"{self.build}:{'+'.join(device.name for device in self.devices)}"

    @property
    def on_cpu(self) -> bool:
        return bool(self.devices) and all(device.name == CPU for device in self.devices)

    @property
    def software(self) -> bool:
        return any(device.software for device in self.devices)


class WantedEngine(Struct, frozen=True, kw_only=True):
    """A user's choice. ``word`` is a seat's id, a build's id, a backend, or a part of one (``cuda``)."""

    word: str
    only: bool = False
    """Use nothing else: no fallback."""

    def matches(self, seat: Seat) -> bool:
        if seat.backend != "cpu" and seat.on_cpu:
            return self.word in (seat.id, seat.build)
        prefixed = self.word.isalpha() and seat.backend.startswith(self.word)
        return self.word in (seat.id, seat.build, seat.backend) or prefixed


class EngineWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's choice, by ``engines use`` or ``engines pin``."""

    engine: str
    """`WantedEngine.word`, or `AUTO`."""
    model: str | None = None
    """None: for all models."""
    pinned: bool = False
    """Use nothing else."""


class Ranked(Struct, frozen=True, kw_only=True):
    """One seat with its standing. ``why`` explains it in words, with figures if there are any."""

    seat: Seat
    standing: Standing
    why: str
    wanted: bool = False
    seconds: float | None = None
    """The nominal request's time."""

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
    proofs: Mapping[str, Sequence[Proof]],
    probations: Iterable[Probation] = (),
    *,
    wanted: WantedEngine | None = None,
    model: str = "",
    now: float = 0.0,
) -> list[Ranked]:
    """Return every seat, best first; unusable ones at the end.

    ``proofs`` are by seat id, one for each of its devices, and only those that are valid now. ``model`` narrows
    ``probations`` to its own.
    """
    waiting = {one.seat: one for one in probations if one.model == model and one.holds(now)}
    judged = [_judged(seat, proofs.get(seat.id, ()), waiting.get(seat.id), wanted, now) for seat in seats]
    if wanted is not None and wanted.only:
        judged = [one for one in judged if one.wanted]
    return sorted(_by_speed(sorted(judged, key=lambda one: (_group(one), one.seat.place, one.seat.id))), key=_group)


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
    wanted = WantedEngine(word=word, only=pinned)
    seats = [one.seat for one in ranked]
    meant = [one for one in ranked if wanted.matches(one.seat)]
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


def _judged(
    seat: Seat, proofs: Sequence[Proof], waiting: Probation | None, wanted: WantedEngine | None, now: float
) -> Ranked:
    asked_for = wanted is not None and wanted.matches(seat)

    def ranked(standing: Standing, why: str, seconds: float | None = None) -> Ranked:
        return Ranked(seat=seat, standing=standing, why=why, wanted=asked_for, seconds=seconds)

    if seat.damage:
        return ranked("damaged", seat.damage)
    if seat.fault:
        return ranked("failed", seat.fault)
    if seat.late:
        return ranked("probation", seat.late)
    if failed := next((proof for proof in proofs if not proof.ok), None):
        return ranked("failed", failed.why)
    seconds = max((proof.nominal_seconds or 0.0 for proof in proofs), default=0.0) or None
    if waiting is not None:
        return ranked("probation", f"{waiting.why}; tried again in {waiting.until - now:.0f} s", seconds)
    if not proofs or len(proofs) < len(seat.devices):
        return ranked("untried", "not tried here yet")
    proof = max(proofs, key=lambda proof: proof.nominal_seconds or 0.0)
    speeds = f" at {proof.shown_speeds} tokens/s" if seconds else ""
    return ranked("proven", f"proven{speeds}", seconds)


def _group(one: Ranked) -> tuple[int, ...]:
    """Rules 1 to 4; a stable sort by it keeps rules 5 and 6."""
    last = {"proven": 0, "untried": 0, "probation": 1, "failed": 2, "damaged": 2}[one.standing]
    untried = one.standing == "untried"
    return (last, not one.wanted, one.seat.software, untried, untried and not one.seat.on_cpu, one.seat.spare)


def _by_speed(placed: list[Ranked]) -> list[Ranked]:
    """Rule 5: the fastest of a group goes first unless a better placed one takes hardly longer; and so on."""
    ordered: list[Ranked] = []
    rest = list(placed)
    while rest:
        first = rest[0]
        group = [one for one in rest if _group(one) == _group(first)]
        timed = [one for one in group if one.seconds is not None]
        if timed:
            least = min(one.seconds or 0.0 for one in timed)
            first = next(one for one in timed if (one.seconds or 0.0) * MARGIN <= least)
        ordered.append(first)
        rest.remove(first)
    return ordered
