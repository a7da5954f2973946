"""Which views of the page a run of the tests plays a scenario in: BROWSER-LOOK, a browser and one of two looks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import product

from landing import draw

BROWSERS = ("chromium", "firefox")
LOOKS = ("en-light-1280", "de-dark-320")
"""Language, theme and width; `tests/web/words.mjs` reads them from LOOK."""
SELDOM = 4
"""One in so many of the main flows is drawn to run in Firefox too."""


def possible(*, main_flow: bool, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return every view of a scenario; LOOK and PAGE_BROWSER are for looking, and choose another."""
    browser, look = (environment.get(name) for name in ("PAGE_BROWSER", "LOOK"))
    browsers = [browser] if browser else BROWSERS if main_flow else BROWSERS[:1]
    return ["-".join(view) for view in product(browsers, [look] if look else LOOKS)]


def drawn(scenario: str, seed: str, *, main_flow: bool) -> list[str]:
    """Return the views of one run: Chromium in one look, and for some of the main flows Firefox in the other.

    The seed is the hash of the commit, so each landing draws again, and in each about half of the scenarios have either
    look. No draw by a hash can promise that each scenario has had everything after so many landings. After ten, one in
    500 has missed one of its looks, and one in 18 of the main flows has missed Firefox.
    """
    look = draw(seed, scenario, range(len(LOOKS)))
    also = main_flow and draw(seed, f"{scenario} in Firefox", range(SELDOM)) == 0
    return [f"{BROWSERS[0]}-{LOOKS[look]}", *([f"{BROWSERS[1]}-{LOOKS[1 - look]}"] if also else [])]


def touched(changed: Iterable[str], sources: Mapping[str, str]) -> set[str]:
    """Return the files of scenarios that a change touches, of those in ``sources``, which are their texts by name.

    It names a screen that has changed. What several screens share would touch all, which is what `--all` is for.
    """
    found: set[str] = set()
    for path in changed:
        if match := re.fullmatch(r"appliance/web/src/screens/(\w+)(\.svelte|/.+)", path):
            place = match[1].lower() if match[2] == ".svelte" else f"machine/{match[1]}"
            found |= {name for name, text in sources.items() if f"#/{place}" in text}
    return found
