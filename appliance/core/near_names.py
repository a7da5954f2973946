"""Which known name was probably meant by one that nobody knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

LONGEST = 200
"""Characters of a name that is compared; a longer one is like none, and would take its time."""
MOST = 50
"""Known names that are told."""


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant: the same but for case and punctuation, else one that looks like it."""
    if len(name) > LONGEST:
        return None
    from difflib import get_close_matches  # a millisecond, for mistakes only

    by_fold = {fold(candidate): candidate for candidate in known}
    found = get_close_matches(fold(name), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def fold(name: str) -> str:
    """``strip_params`` and ``StripParams`` are one name."""
    return name.casefold().replace("_", "").replace("-", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty where nothing looks like it."""
    meant = near(name, known)
    return f"; did you mean '{meant}'?" if meant else ""


def meant_or_all(name: str, known: Collection[str]) -> str:
    """The same where the known names are few enough to be told when nothing looks like it."""
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return did_you_mean(name, known) or f"; there are {', '.join(islice(known, MOST))}{more}"
