"""Parameters of a request: whole numbers, times and lengths of time, with errors that name them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from appliance.core.whole_numbers import whole_number
from appliance.errors import BadRequest

_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
MAX_SPAN = 3650 * 86_400
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def read_whole(text: str, name: str, least: int = 0, most: int | None = None) -> int:
    """Read a parameter that is a whole number. Raises BadRequest, which names it."""
    number = whole_number(text)
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise BadRequest(f"{name} must be a whole number {bounds}, not {shown(text)}", param=name)
    return number


def read_time(text: str, name: str) -> datetime:
    """Read a parameter that is a time of RFC 3339. Raises BadRequest, which names it."""
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        message = (
            f"{name} must be an RFC 3339 time such as 2026-11-20T08:30:00Z, not {shown(text)}; write + as %2B in a URL"
        )
        raise BadRequest(message, param=name) from None


def read_span(text: str, name: str) -> int:
    """Read a parameter that is a length of time such as ``12h``, in seconds. Raises BadRequest, which names it."""
    found = _SPAN.fullmatch(text)
    span = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < span <= MAX_SPAN:
        raise BadRequest(f"{name} must be a time such as 30m, 12h or 7d, at most 3650d, not {shown(text)}", param=name)
    return span


def shown(text: str) -> str:
    """Return a text of a client for a message: quoted, and its beginning if it is long."""
    return repr(text if len(text) <= 40 else text[:40] + "...")
