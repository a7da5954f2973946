"""Whole numbers in texts that anybody may have written: of options, variables, headers, other programs."""

from __future__ import annotations

DIGITS = 18  # the most that a number may have: it fits into 64 bits, and Python reads no number of thousands of digits


def whole_number(text: str | bytes) -> int | None:
    """Return the number that ASCII digits make; None for anything else, a sign or a number that is too long too."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
