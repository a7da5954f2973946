"""Times and sizes with a unit, as a configuration writes them."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float | None:
    """Seconds of a Go duration (``5s``, ``1m30s``, ``0``); None when it is none, as a number without a unit."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = list(_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest:
        return None
    return sign * sum(float(part[1]) * _SECONDS[part[2]] for part in parts)


def parse_size(size: str | int) -> int | None:
    """Bytes of ``12GiB``, ``12G`` (powers of 1024), ``500MB`` (powers of 1000) or a plain number; None otherwise."""
    if isinstance(size, int):
        return size if size >= 0 else None
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        return None
    number, unit, end = match[1], match[2].lower(), match[3].lower()
    if end.startswith("i") and not unit:
        return None
    return int(float(number) * (1000 if end == "b" else 1024) ** _POWER[unit])
