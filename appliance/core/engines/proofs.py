"""The proofs of an engine build on a device: their keys, and how long they are valid.

A build is trusted for a device only after it loaded the starter model there and said what that model is known to say:
a device that is listed may crash at load, at the first kernel, or compute garbage. A proof holds for exactly the build
(its digest), the device, its driver's version and the system's build; when any of them changes it is not found again.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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
