"""Sizes and times in the words of a sentence, for findings and the timeline; tables have `cli.show`'s."""

from __future__ import annotations

from appliance.core.sizes import GIB, KIB, MIB

UNITS = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def size(number: int) -> str:
    """Format ``7.5 GiB``."""
    for unit, large in UNITS:
        if number >= large:
            return f"{number / large:.1f} {unit}"
    return f"{number} B"


def span(seconds: float) -> str:
    """Format ``40 s``, ``12 min``, ``3.5 h``, ``2 days``."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
