"""The results of trying a seat: proofs, with the starter model, and probations, after failures at work.

A build is trusted for a device only after it loaded the starter model there and said what that model is known to say:
a device that is listed may crash at load, at the first kernel, or compute garbage. A proof holds for exactly the build
(its digest), the device, its driver's version and the system's build; when any of them changes it is not found again.

A failure at work puts a pair of seat and model on probation: it is tried again later, with back-off, never given up for
ever. A failure of one model says little of the others, so the pair waits. The owner of engines then proves the seat
again with the starter model, and a seat that fails that is out for every model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, structs

Fault = Literal["list", "load", "crash", "garbage", "hang", "memory", "damaged", "missing"]
"""The fault: listing its devices failed, the model did not load, it died at work, it gave a wrong answer, it did not
answer in time, it reported absurd memory or found none free, its files have changed, a library is missing.
"""

FAILED_HOLDS = 86400.0
"""Seconds for which a failed proof counts: no seat is out for ever, because the cause may have passed."""
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

NOMINAL_PROMPT, NOMINAL_ANSWER = 512, 128
"""Tokens of the request by which speeds are compared."""
WARM_UP = (64, 2)
"""Tokens of prompt and answer of the first request, which may also build kernels; it is not measured."""
SMALL = (64, 4)
WHOLE = (512, 32)
ROUNDS = 3
"""Largest number of repetitions of the measurement; the fastest counts, because cards need a moment to wake up."""
MOST_TOKENS = 1e6
"""Largest number of tokens of one request; no measurement asks for as many."""
QUICKEST, SLOWEST = 1e-3, 1e9
"""Shortest and longest plausible time for a part of a request, in milliseconds."""
BUDGET = 6.0
"""Seconds that measuring may take after the first request; a slow machine computes fewer tokens."""

SPEED_KEPT = 0.8
"""Part of the old build's speed that a new one must reach."""


class EngineTimings(Struct, frozen=True):
    """llama-server's own measurement of a request. Times in milliseconds."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0

    @property
    def told(self) -> bool:
        """True if all of it is there, and plausible."""
        counts, times = (self.prompt_n, self.predicted_n), (self.prompt_ms, self.predicted_ms)
        return all(0 < count <= MOST_TOKENS for count in counts) and all(QUICKEST <= ms <= SLOWEST for ms in times)


class ProvenSpeeds(Struct, frozen=True):
    """Tokens per second for reading a prompt and for answering."""

    prompt: float
    generation: float

    @property
    def nominal_seconds(self) -> float:
        """Return the time of the nominal request, the figure for comparison; less is better."""
        return NOMINAL_PROMPT / self.prompt + NOMINAL_ANSWER / self.generation


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
        """The basis of the ranking, see `ProvenSpeeds`. None: not measured."""
        if not self.prompt_speed or not self.generation_speed:
            return None
        return ProvenSpeeds(self.prompt_speed, self.generation_speed).nominal_seconds


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


# ---- measuring -------------------------------------------------------------------------------------------------------


def next_request(done: Sequence[EngineTimings], spent: float) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer to measure with next; None: it is enough.

    ``spent``: seconds since the first request was answered. The expected time of a request follows the fastest one so
    far, because the first of a size may also build kernels.
    """
    if len(done) < 2:
        return SMALL if done else WARM_UP
    found = speeds_of(done[1:])
    if found is None or len(done) >= 2 + ROUNDS:
        return None
    expected = WHOLE[0] / found.prompt + WHOLE[1] / found.generation
    part = (BUDGET - spent) / expected
    if part >= 1:
        return WHOLE
    smaller = int(WHOLE[0] * part), max(SMALL[1], int(WHOLE[1] * part))
    return smaller if len(done) == 2 and smaller[0] >= 2 * SMALL[0] else None


def speeds_of(done: Sequence[EngineTimings], part: float = 1.0) -> ProvenSpeeds | None:
    """Return the best result; ``part``: the share of the measuring model that was computed. None: no result."""
    told = [timings for timings in done if timings.told]
    if not told:
        return None
    prompt = max(timings.prompt_n / timings.prompt_ms for timings in told) * 1000
    generation = max(timings.predicted_n / timings.predicted_ms for timings in told) * 1000
    return ProvenSpeeds(prompt * part, generation * part)


def canary_failure(old: ProvenSpeeds | None, new: ProvenSpeeds) -> str:
    """Return why the new build is refused for its speed; empty: it is not. Without an old one, any speed will do."""
    if old is None or new.nominal_seconds * SPEED_KEPT <= old.nominal_seconds:
        return ""
    reached = 100 * old.nominal_seconds / new.nominal_seconds
    return (
        f"it reaches {reached:.0f} % of the speed of the build in use (at least "
        f"{100 * SPEED_KEPT:.0f} % are required): {new.prompt:.0f} and {new.generation:.0f} tokens/s, "
        f"not {old.prompt:.0f} and {old.generation:.0f}"
    )
