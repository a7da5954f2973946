"""Everything that is remembered about engines: one file, one value. `core.engines.events` is the only way to change it.

A *line* is the builds for one platform and backend, ``linux-x64-cpu``. A line that an update or a rollback has been
through has a current build, which goes before the others of the line. A line that nobody has changed has none, and its
builds are ranked like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from appliance.core.engine import Manual
from appliance.core.engines.builds import UpdateChannel
from appliance.core.engines.choice import Ranked, Seat
from appliance.core.engines.listing import Device
from appliance.core.engines.proofs import Probation, Proof, ProofKey
from appliance.core.machine_look import MachineLook
from appliance.errors import Conflict, UsageError

TRIAL = 3600.0
"""Seconds after a switch within which a failure of the new build restores the old one."""

Step = Literal["stage", "prove", "canary", "place", "tidy", "discard"]
Role = Literal["current", "previous", "withdrawn", ""]
NOTHING: Mapping[str, str] = {}


class ListedDevices(Struct, frozen=True, kw_only=True):
    """One build's list of its devices when it was last asked, on this system."""

    digest: str
    system: str
    drivers: str
    """`drivers_of` the machine at that time."""
    devices: tuple[Device, ...] = ()
    why: str = ""
    """The reason why it could not list them; empty: it could."""
    manual: Manual | None = None
    """None: it was not asked, or by a version of the program that did not ask for this."""


class BuildLine(Struct, frozen=True, kw_only=True):
    """One line with its history."""

    name: str
    current: str
    """A build's id."""
    previous: tuple[str, ...] = ()
    """Ids, the one before the current first."""
    switched_at: float = 0.0
    """Unix time at which the current build came into use."""


class Journal(Struct, frozen=True, kw_only=True):
    """The update under way. ``step`` is the current step, or the one at which the program was killed.

    The work of a step may be carried out twice without harm. *stage*: have the build, complete, among the staged ones,
    unless it is in its place. *prove*: find out whether it works on the devices that it is for. *canary*: find out
    whether it runs the user's own model, and not too slowly. *place*: move it to its place by one rename, unless it is
    there. *tidy*: remove the surplus, then everything that is staged. *discard*: remove everything that is staged.
    """

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


class RefusedUpdate(Struct, frozen=True, kw_only=True):
    """The last update that was tried and not taken, since one was taken."""

    build: str
    """The new build's id."""
    old: str
    """The id of the build that stayed in use."""
    why: str
    at: float


class ContextTrial(Struct, frozen=True, kw_only=True):
    """The latest time that a build was given back what a model had read. Another build is another trial."""

    digest: str
    build: str
    architecture: str
    """The model's, as its file names it."""
    why: str = ""
    """The reason why it did not help; empty: it did."""
    at: float


class EngineState(Struct, frozen=True, kw_only=True):
    """The whole of it. Each event makes a new one."""

    proofs: tuple[Proof, ...] = ()
    probations: tuple[Probation, ...] = ()
    listed: tuple[ListedDevices, ...] = ()
    look: MachineLook | None = None
    """The machine when it was last examined."""
    signature: str = ""
    """The machine's drivers and cards then: while this is unchanged, ``look`` and ``listed`` are valid."""
    use: str | None = None
    """`Wanted.word` for all models, set by ``engines use``."""
    pinned: bool = False
    """``use`` and nothing else (``engines pin``): no fallback, no update."""
    models: Mapping[str, str] = NOTHING
    """The same by model id."""
    channel: UpdateChannel = "latest"
    """The builds that ``engines update`` takes, as somebody chose."""
    lines: tuple[BuildLine, ...] = ()
    withdrawn: Mapping[str, str] = NOTHING
    """Builds that were rolled back, with the reason: they go behind all others."""
    journal: Journal | None = None
    refused: RefusedUpdate | None = None
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
        pair = (digest, architecture)
        return next((one for one in self.contexts if (one.digest, one.architecture) == pair), None)

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

    def with_line(self, line: BuildLine) -> EngineState:
        others = [one for one in self.lines if one.name != line.name]
        return structs.replace(self, lines=(*others, line))

    def without_build(self, build: str) -> EngineState:
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

    def trusting(self, build: str) -> EngineState:
        """Forget why the build was withdrawn."""
        if build not in self.withdrawn:
            return self
        return structs.replace(self, withdrawn={one: why for one, why in self.withdrawn.items() if one != build})

    def arrange(self, ranked: Sequence[Ranked]) -> list[Ranked]:
        """Apply the decisions about lines to `choice.rank`'s order.

        The places that one line's seats have, of one standing and on the same side (processor or cards), stay. The
        line's current build gets the first of them, then those before it, then the rest. Withdrawn builds go behind
        all others that can be used, unless somebody asked for them.
        """
        order = list(ranked)
        for line in self.lines:
            for kind in {_kind(one) for one in order if line_of(one.seat.build) == line.name}:
                places = [
                    i for i, one in enumerate(order) if line_of(one.seat.build) == line.name and _kind(one) == kind
                ]
                known = (line.current, *line.previous)
                ages = {build: known.index(build) for build in known}
                seats = sorted((order[i] for i in places), key=lambda one: ages.get(one.seat.build, len(known)))
                for place, one in zip(places, seats, strict=True):
                    order[place] = one
        return sorted(order, key=lambda one: (not one.usable, one.seat.build in self.withdrawn and not one.wanted))


def key_of(seat: Seat, device: Device, system: str) -> ProofKey:
    """Return the key under which a proof of one device of a seat is remembered."""
    return ProofKey(digest=seat.digest, device=device.id, driver=device.driver, system=system)


def line_of(build: str) -> str:
    """Return ``linux-x64-cpu`` of ``linux-x64-cpu/b11434``; anything but a build is a line of its own."""
    name, slash, release = build.partition("/")
    return name if slash and name and release and "/" not in release else build


def lines_to_roll_back(state: EngineState, backend: str | None, here: Sequence[str]) -> list[BuildLine]:
    """Return the lines of a backend, or all, the most recently switched one last.

    ``here`` are the builds that are on the disk and whole. Earlier builds that are not are left out: the program cannot
    return to those.
    """
    for build in [build for line in state.lines for build in line.previous if build not in here]:
        state = state.without_build(build)
    found = [line for line in state.lines if backend is None or line.name.endswith(f"-{backend}")]
    return sorted(found, key=lambda line: line.switched_at)


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
