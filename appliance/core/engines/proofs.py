"""The results of trying a seat: proofs, with the starter model, and probations, after failures at work.

A build is trusted for a device only after it loaded the starter model there and said what that model is known to say:
a device that is listed may crash at load, at the first kernel, or compute garbage. A proof holds for exactly the build
(its digest), the device, its driver's version and the system's build; when any of them changes it is not found again.

A failure at work puts a pair of seat and model on probation: it is tried again later, with back-off, never given up for
ever. A failure of one model says little of the others, so the pair waits. The owner of engines then proves the seat
again with the starter model, and a seat that fails that is out for every model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, structs

from appliance.core.engines.speeds import Speeds

Fault = Literal["list", "load", "crash", "garbage", "hang", "memory", "damaged", "missing"]
"""The fault: listing its devices failed, the model did not load, it died at work, it gave a wrong answer, it did not
answer in time, it reported absurd memory or found none free, its files have changed, a library is missing.
"""

FAILED_HOLDS = 86400.0
"""Seconds for which a failed proof counts: no seat is out for ever, because the failure may have had a passing
cause.
"""
NO_ROOM_HOLDS = 600.0
"""The same if memory was short: another program may have used it."""

BACK_OFF = (60.0, 300.0, 1800.0, 7200.0, 43200.0, 86400.0)
"""Seconds until the next try after the first, second ... failure in a row; the last value for every later one."""
CLOCK_SLACK = 60.0
"""Seconds by which a clock may be set back without consequence; if it is more, the records are void."""
EASED = 300.0
"""The longest wait in seconds for a seat that has been proven again since: perhaps the request or the model is to
blame, and one client's poison must not block a good engine for everybody for a day.
"""
FORGOTTEN = 7 * 86400.0
"""Seconds after its end during which a probation still counts as the previous one."""


class ProofKey(Struct, frozen=True, kw_only=True):
    """The key of a proof."""

    digest: str
    device: str
    driver: str
    system: str


class Proof(Struct, frozen=True, kw_only=True):
    """One trial. Speeds in tokens per second of the measuring model, None if it got no result."""

    key: ProofKey
    build: str
    """The build's id, for people."""
    device: str
    """The device's name and description, for people."""
    fault: Fault | None
    """None: proven."""
    why: str = ""
    """One line; empty for a proven one."""
    pci: str | None = None
    """The card's place, if known: the engine reports it when it loads a model."""
    prompt_speed: float | None = None
    generation_speed: float | None = None
    seconds: float = 0.0
    at: float = 0.0
    """Unix time."""

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
        speeds = [speed for speed in (self.prompt_speed, self.generation_speed) if speed is not None]
        return " and ".join(f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" for speed in speeds)

    @property
    def nominal_seconds(self) -> float | None:
        """The basis of the ranking, see `Speeds`. None: not measured."""
        if not self.prompt_speed or not self.generation_speed:
            return None
        return Speeds(self.prompt_speed, self.generation_speed).nominal_seconds


class Probation(Struct, frozen=True, kw_only=True):
    """One pair. Times are Unix times."""

    seat: str
    digest: str
    model: str
    failures: int
    why: str
    since: float
    until: float

    def holds(self, now: float) -> bool:
        """Return True if the pair still waits."""
        return self.since - CLOCK_SLACK <= now < self.until


def after_failure(before: Probation | None, *, seat: str, digest: str, model: str, why: str, now: float) -> Probation:
    """The pair has failed (again); ``before`` is its last probation. Another build starts anew."""
    again = before is not None and before.digest == digest and now < before.until + FORGOTTEN
    failures = before.failures + 1 if again and before is not None else 1
    wait = BACK_OFF[min(failures, len(BACK_OFF)) - 1]
    return Probation(seat=seat, digest=digest, model=model, failures=failures, why=why, since=now, until=now + wait)


def eased(probation: Probation) -> Probation:
    """The seat has been proven since."""
    return structs.replace(probation, until=min(probation.until, probation.since + EASED))


def kept(probations: Iterable[Probation], now: float) -> tuple[Probation, ...]:
    """Return the probations that still matter."""
    return tuple(one for one in probations if now < one.until + FORGOTTEN)
