"""The story of a build on its devices: untried, proven, failed, on probation. What is remembered of it, and how long.

A *seat* is a build on the devices that it gets. A standing is never stored. It follows from facts, each with one owner:

    damaged     its files are not what its manifest lists (`appliance.engines.builds` looks)
    failed      it cannot list its devices (`ListedDevices.why`), or a `Proof` on one of its devices has a fault
    probation   it has not listed its devices in time (the owner knows), or a `Probation` of seat and model holds
    untried     a device has no proof
    proven      every device has one

    untried -> tried with the starter model -> proven -> it fails at work with a model -> probation for that model
                                            -> failed: untried again after a while     -> proven again: minutes are left

A build is trusted for a device only after it loaded the starter model there and said what that model is known to say:
a device that is listed may crash at load, at the first kernel, or compute garbage. A proof holds for exactly the build
(its digest), the device, its driver's version and the system's build; when any of them changes it is not found again.

A failure at work says little of other models, so the pair of seat and model waits. It is tried again later, with
back-off, and never given up for ever. The owner of engines then proves the seat again with the starter model, and a
seat that fails that is out for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from appliance.core.engine import Manual
from appliance.core.versions import BuildFailed
from appliance.features.engines.core.listing import CPU, Device, Fault

Standing = Literal["proven", "untried", "probation", "failed", "damaged"]

FAILED_HOLDS = 86400.0  # seconds for which a failed proof counts: no seat is out for ever, as causes pass
NO_ROOM_HOLDS = 600.0  # the same if memory was short: another program may have used it

BACK_OFF = (60.0, 300.0, 1800.0, 7200.0, 43200.0, 86400.0)
"""Seconds until the next try after the first, second ... failure in a row; the last value for every later one."""
CLOCK_SLACK = 60.0  # seconds by which a clock may be set back without consequence; beyond that, records are void
EASED = 300.0
"""The longest wait in seconds for a seat that has been proven again since: perhaps the request or the model is to
blame, and one client's poison must not block a good engine for everybody for a day.
"""
FORGOTTEN = 7 * 86400.0  # seconds after its end during which a probation still counts as the previous one

NOMINAL_PROMPT, NOMINAL_ANSWER = 512, 128  # tokens of the request by which speeds are compared


class Seat(Struct, frozen=True, kw_only=True):
    """A build on devices: only the processor, or GPUs (with the processor's help). None: the build's own choice."""

    build: str  # the build's id; ``embedded``, or the path of a program that is not a build
    backend: str
    digest: str
    place: int  # the rank of the place where the build was found: 0 is the best
    devices: tuple[Device, ...] = ()
    damage: str = ""  # the problem with its files; empty: none
    fault: str = ""  # the reason why it cannot even list its devices
    late: str = ""  # why it has not listed its devices yet: it goes last, and is tried if nothing else is left
    spare: bool = False  # a build for graphics cards, on the processor

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


class ProvenSpeeds(Struct, frozen=True):
    """Tokens per second for reading a prompt and for answering."""

    prompt: float
    generation: float

    @property
    def nominal_seconds(self) -> float:
        """Return the time of the nominal request, the figure for comparison; less is better."""
        return NOMINAL_PROMPT / self.prompt + NOMINAL_ANSWER / self.generation


def shown_speed(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"


class ProofKey(Struct, frozen=True, kw_only=True):
    """The key of a proof."""

    digest: str
    device: str
    driver: str
    system: str


class Proof(Struct, frozen=True, kw_only=True):
    """One trial. Speeds in tokens per second of the measuring model, None if it got no result."""

    key: ProofKey
    build: str  # the build's id, for people
    device: str  # the device's name and description, for people
    fault: Fault | None  # None: proven
    why: str = ""  # one line; empty for a proven one
    pci: str | None = None  # the card's place, if known: the engine reports it when it loads a model
    prompt_speed: float | None = None
    generation_speed: float | None = None
    seconds: float = 0.0
    at: float = 0.0  # Unix time

    @property
    def digest(self) -> str:
        return self.key.digest

    @property
    def ok(self) -> bool:
        return self.fault is None

    def holds(self, now: float) -> bool:
        """True if its time has not run out; a clock that was set back prolongs nothing."""
        limit = NO_ROOM_HOLDS if self.fault == "memory" else FAILED_HOLDS
        return self.ok or abs(now - self.at) < limit

    @property
    def shown_speeds(self) -> str:
        """For people; empty if they were not measured."""
        speeds = (self.prompt_speed, self.generation_speed)
        return " and ".join(shown_speed(speed) for speed in speeds if speed is not None)

    @property
    def nominal_seconds(self) -> float | None:
        """The basis of the ranking, see `ProvenSpeeds`. None: not measured."""
        if not self.prompt_speed or not self.generation_speed:
            return None
        return ProvenSpeeds(self.prompt_speed, self.generation_speed).nominal_seconds


class SeatFailed(BuildFailed, frozen=True, kw_only=True):
    """A model could not be started on a seat, or its process died at work."""

    seat: str
    digest: str
    model: str
    others: bool  # the model has another seat to go to; if it has none, this one does not wait


class Probation(Struct, frozen=True, kw_only=True):
    """One pair of seat and model. Times are Unix times."""

    seat: str
    digest: str
    model: str
    failures: int
    why: str
    since: float
    until: float

    @property
    def key(self) -> tuple[str, str]:
        return self.seat, self.model

    def holds(self, now: float) -> bool:
        """Return True if the pair still waits."""
        return self.since - CLOCK_SLACK <= now < self.until

    def counts(self, now: float) -> bool:
        """Return True if a failure now is one more in a row."""
        return now < self.until + FORGOTTEN


def after_failure(before: Probation | None, failed: SeatFailed) -> Probation:
    """The pair has failed (again); ``before`` is its last probation. Another build starts anew."""
    again = before is not None and before.digest == failed.digest and before.counts(failed.at)
    failures = before.failures + 1 if again and before is not None else 1
    until = failed.at + BACK_OFF[min(failures, len(BACK_OFF)) - 1]
    return Probation(
        seat=failed.seat,
        digest=failed.digest,
        model=failed.model,
        failures=failures,
        why=failed.why,
        since=failed.at,
        until=until,
    )


class ListedDevices(Struct, frozen=True, kw_only=True):
    """One build's list of its devices when it was last asked, on this system."""

    digest: str
    system: str
    drivers: str  # `drivers_of` the machine at that time
    devices: tuple[Device, ...] = ()
    why: str = ""  # the reason why it could not list them; empty: it could
    manual: Manual | None = None  # None: it was not asked, or by a version of the program that did not ask for this

    @property
    def key(self) -> str:
        return self.digest


class ContextTrial(Struct, frozen=True, kw_only=True):
    """The latest time that a build was given back what a model had read. Another build is another trial."""

    digest: str
    build: str
    architecture: str  # the model's, as its file names it
    why: str = ""  # the reason why it did not help; empty: it did
    at: float

    @property
    def key(self) -> tuple[str, str]:
        return self.digest, self.architecture


def key_of(seat: Seat, device: Device, system: str) -> ProofKey:
    """Return the key under which a proof of one device of a seat is remembered."""
    return ProofKey(digest=seat.digest, device=device.id, driver=device.driver, system=system)


def standing_of(seat: Seat, proofs: Sequence[Proof], waiting: Probation | None, now: float) -> tuple[Standing, str]:
    """Return the standing, and why, in words. ``proofs`` and ``waiting`` hold now, one for each device at most.

    The first of these facts decides.
    """
    if seat.damage:
        return "damaged", seat.damage
    if seat.fault:
        return "failed", seat.fault
    if seat.late:
        return "probation", seat.late
    if failed := next((proof for proof in proofs if not proof.ok), None):
        return "failed", failed.why
    if waiting is not None:
        return "probation", f"{waiting.why}; tried again in {waiting.until - now:.0f} s"
    if not proofs or len(proofs) < len(seat.devices):
        return "untried", "not tried here yet"
    slowest = max(proofs, key=lambda proof: proof.nominal_seconds or 0.0)
    return "proven", f"proven at {slowest.shown_speeds} tokens/s" if slowest.nominal_seconds else "proven"
