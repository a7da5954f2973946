"""Everything that is remembered about engines: one file, one value. `events` beside it is the only way to change it.

A line of `core.versions` is the builds for one platform and backend, ``linux-x64-cpu``. Its current build goes before
the others of the line. A line that nobody has changed has none, and its builds are ranked like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from appliance.core.engine import Manual
from appliance.core.machine_look import MachineLook
from appliance.core.versions import NOTHING, VersionState, line_of
from appliance.errors import Conflict, UsageError
from appliance.features.engines.core.builds import UpdateChannel
from appliance.features.engines.core.choice import Ranked, Seat
from appliance.features.engines.core.listing import Device
from appliance.features.engines.core.proofs import Probation, Proof, ProofKey


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


class ContextTrial(Struct, frozen=True, kw_only=True):
    """The latest time that a build was given back what a model had read. Another build is another trial."""

    digest: str
    build: str
    architecture: str
    """The model's, as its file names it."""
    why: str = ""
    """The reason why it did not help; empty: it did."""
    at: float


class EngineState(VersionState, frozen=True, kw_only=True):
    """The whole of it. Each event makes a new one. Withdrawn builds go behind all others."""

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
