"""Pairs of a seat and a model that failed at work, and when to try them again: with back-off, never for ever.

A *seat* is a build on its devices. A failure of one model says little of the others, so that it is the pair that waits;
the owner then proves the seat again with the starter model, and a seat that fails that is out for every model.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

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
