"""One transfer of a file, decided: go on, start over or wait, how fast, and how long it will take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
LONGEST_RETRY_AFTER = 300.0
"""Seconds that a download waits when it is asked to; one that has to wait longer fails, and can be resumed."""
MAX_RETRY_AFTER = 10 * 365 * 86400
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)")


class Continue(Struct, frozen=True):
    """The body is the file from the requested offset up to ``stop``, after ``skip`` bytes that are on disk already."""

    stop: int
    skip: int = 0


class StartOver(Struct, frozen=True):
    """The part on disk does not belong to the server's current file."""

    why: str


def judge(status: int, headers: Mapping[bytes, bytes], have: int, size: int) -> Continue | StartOver:
    """Return the meaning of an answer of 200, 206 or 416 to a request for everything from ``have``.

    ``headers`` have lower-case names; ``size`` is that of the whole file.
    """
    if headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
        return StartOver("it sends the file compressed, which cannot be continued")
    if status == 416:
        return StartOver(f"it has fewer bytes than the {have} that are here already")
    if status == 206:
        match = _RANGE.fullmatch(headers.get(b"content-range", b"").decode("latin-1").strip())
        if match is None or int(match[1]) != have:
            return StartOver("it sends the wrong part of the file")
        if match[3] != "*" and int(match[3]) != size:
            return StartOver(f"its file has {match[3]} bytes, not {size}")
        if not have <= int(match[2]) < size:
            return StartOver("it sends the wrong part of the file")
        return Continue(stop=int(match[2]) + 1)
    length = headers.get(b"content-length")
    if length is not None and int(length) != size:
        return StartOver(f"its file has {int(length)} bytes, not {size}")
    return Continue(stop=size, skip=have)


def is_passing(status: int) -> bool:
    """True if a request with such an answer may succeed later."""
    return status in RETRY_STATUSES


def retry_after(value: bytes | None, now: float) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None without one. ``now``: seconds since 1970."""
    text = (value or b"").decode("latin-1").strip()
    if text.isdecimal():
        return float(min(int(text[:20]), MAX_RETRY_AFTER))
    from email.utils import parsedate_to_datetime  # 10 ms that only a server with a date needs

    try:
        date = parsedate_to_datetime(text)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def asked_to_wait(seconds: float, now: float) -> str:
    """Return the words for a wait that a server asks for."""
    until = datetime.fromtimestamp(now + seconds, UTC)
    return f"it asks to wait {math.ceil(seconds)} s, until {until:%Y-%m-%d %H:%M:%S} UTC"


def retry_delay(attempt: int, asked: float | None) -> float:
    """Return the seconds before the next attempt; the first failed attempt is number 1."""
    return max(min(FIRST_DELAY * 2.0 ** (attempt - 1), LONGEST_DELAY), asked or 0.0)


class Throttle:
    """A bandwidth limit shared by all transfers; ``rate`` is in bytes per second, and None means no limit."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._free_at = 0.0

    def take(self, count: int, now: float) -> float:
        """Return the seconds to wait after receiving so many bytes."""
        if self._rate is None:
            return 0.0
        self._free_at = max(self._free_at, now) + count / self._rate
        return self._free_at - now
