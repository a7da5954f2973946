"""The reader of a stream that may break, and what may follow it, as the kernel asks for both."""

from __future__ import annotations

from appliance.core.answers.families import Family
from appliance.core.answers.going_on import Refusal, Seam, SecondHalf
from appliance.features.continuation.core.beginning import Partial, SoFar, continued_body
from appliance.features.continuation.core.splice import Splicer


class Beginning:
    """The beginning of an answer: a `BrokenAnswer`."""

    def __init__(self, partial: Partial) -> None:
        self._partial = partial
        self.begun = partial.begun
        self.finished = partial.finished
        self.closing = partial.closing

    def continued(self, body: bytes) -> bytes | Refusal:
        return continued_body(body, self._partial)

    def splicer(self, seam: Seam) -> SecondHalf:
        return Splicer(self._partial, seam)


class BreakableStream:
    """Reads a stream piece by piece: a `StreamSoFar`."""

    def __init__(self, family: Family) -> None:
        self._read = SoFar(family)
        self.feed = self._read.feed

    def partial(self) -> Beginning | Refusal:
        found = self._read.partial()
        return found if isinstance(found, Refusal) else Beginning(found)
