"""The speed of an engine, from its own measurements of single requests: the next request, and the result."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

NOMINAL_PROMPT, NOMINAL_ANSWER = 512, 128
"""Tokens of the request by which speeds are compared."""
WARM_UP = (64, 2)
"""Tokens of prompt and answer of the first request, which may also build kernels; it is not measured."""
SMALL = (64, 4)
WHOLE = (512, 32)
ROUNDS = 3
"""Largest number of repetitions of the whole measurement; the fastest counts, because cards need a moment to wake
up.
"""
MOST_TOKENS = 1e6
"""Largest number of tokens of one request; no measurement asks for as many."""
QUICKEST, SLOWEST = 1e-3, 1e9
"""Shortest and longest plausible time for a part of a request, in milliseconds."""
BUDGET = 6.0
"""Seconds that measuring may take after the first request; a slow machine computes fewer tokens."""

SPEED_KEPT = 0.8
"""Part of the old build's speed that a new one must reach."""


class Timings(Struct, frozen=True):
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


class Speeds(Struct, frozen=True):
    """Tokens per second for reading a prompt and for answering."""

    prompt: float
    generation: float

    @property
    def nominal_seconds(self) -> float:
        """Return the time of the nominal request, the figure for comparison; less is better."""
        return NOMINAL_PROMPT / self.prompt + NOMINAL_ANSWER / self.generation


def next_request(done: Sequence[Timings], spent: float) -> tuple[int, int] | None:
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


def speeds_of(done: Sequence[Timings], part: float = 1.0) -> Speeds | None:
    """Return the best result; ``part``: the share of the measuring model that was computed. None: it reported
    nothing.
    """
    told = [timings for timings in done if timings.told]
    if not told:
        return None
    prompt = max(timings.prompt_n / timings.prompt_ms for timings in told) * 1000
    generation = max(timings.predicted_n / timings.predicted_ms for timings in told) * 1000
    return Speeds(prompt * part, generation * part)


def canary_failure(old: Speeds | None, new: Speeds) -> str:
    """Return why the new build is refused because of its speed; empty: it is not. Without an old one, any speed will
    do.
    """
    if old is None or new.nominal_seconds * SPEED_KEPT <= old.nominal_seconds:
        return ""
    reached = 100 * old.nominal_seconds / new.nominal_seconds
    return (
        f"it reaches {reached:.0f} % of the speed of the build in use (at least "
        f"{100 * SPEED_KEPT:.0f} % are required): {new.prompt:.0f} and {new.generation:.0f} tokens/s, "
        f"not {old.prompt:.0f} and {old.generation:.0f}"
    )
