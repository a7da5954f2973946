"""The known name that an unknown one probably means."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

LONGEST = 200
"""Longest name that is compared; a longer one resembles nothing, and would take too long."""
MOST = 50
"""Number of known names in a message."""


def near(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was meant: one with other case or punctuation, else a similar one."""
    if len(name) > LONGEST:
        return None
    from difflib import get_close_matches  # a millisecond, for mistakes only

    by_fold = {fold(candidate): candidate for candidate in known}
    found = get_close_matches(fold(name), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def fold(name: str) -> str:
    """Treat ``strip_params`` and ``StripParams`` as one name."""
    return name.casefold().replace("_", "").replace("-", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name; empty if nothing looks like it."""
    meant = near(name, known)
    return f"; did you mean '{meant}'?" if meant else ""


def meant_or_all(name: str, known: Collection[str]) -> str:
    """The same for few known names, which are listed if nothing looks like it."""
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return did_you_mean(name, known) or f"; there are {', '.join(islice(known, MOST))}{more}"
