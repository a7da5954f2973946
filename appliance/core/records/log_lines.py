"""The program's own log lines in llama-swap's form: levels, time stamps, the line of a finished request.

Source: llama-swap 0bdb3720; the time formats are those of Go's ``time`` package, whose names it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal

from msgspec import Struct

Level = Literal["debug", "info", "warn", "error"]
LogToStdout = Literal["proxy", "upstream", "both", "none"]
LogSource = Literal["proxy", "upstream"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")
QUIET_PATHS = ("/wol-health", "/api/performance", "/metrics")
"""Paths that are requested all the time; a request for them is not worth a line."""

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""English, whatever the locale: other programs read these lines."""


class LineStyle(Struct, frozen=True):
    """``logLevel`` and ``logTimeFormat`` of a configuration; unknown names mean ``info`` and no time."""

    level: str = "info"
    time_format: str = ""

    def shows(self, level: Level) -> bool:
        return LEVELS.index(level) >= LEVELS.index(level_of(self.level))

    def line(self, level: Level, text: str, when: datetime | None) -> str:
        """Format ``[TIME ][LEVEL] text``, one line whatever the text contains. ``when`` knows its time zone.

        It may be None where there is no ``time_format``.
        """
        time = stamp(self.time_format, when) if when is not None else ""
        return f"{time}{' ' if time else ''}[{level.upper()}] {text if text.isprintable() else _visible(text)}"


def level_of(name: str) -> Level:
    wanted = name.strip().lower()
    return LEVELS[LEVELS.index(wanted)] if wanted in LEVELS else "info"


def in_console(mode: LogToStdout, source: LogSource) -> bool:
    """True if a line of this source goes to the console, and into the combined log."""
    return mode in (source, "both")


def request_line(
    address: str, method: str, path: str, version: str, status: int, size: int, agent: bytes, seconds: float
) -> str:
    """Format ``Request IP "METHOD PATH PROTO" status bytes "UA" duration``."""
    said = agent.decode("latin-1")
    return f'Request {address} "{method} {path} HTTP/{version}" {status} {size} "{said}" {duration(seconds)}'


def is_quiet(path: str) -> bool:
    """True if requests for this path are left out of the log."""
    return path.startswith(QUIET_PATHS)


def client_address(forwarded_for: str | None, real_ip: str | None, peer: str) -> str:
    """Return the caller's address as proxies report it (``X-Forwarded-For``, ``X-Real-IP``), else the peer's."""
    first = (forwarded_for or "").split(",")[0].strip()
    return first or (real_ip or "").strip() or peer


def duration(seconds: float) -> str:
    """Format seconds as Go does: ``1.5ms``, ``2.25s``, ``1m0.5s``."""
    nanoseconds = round(seconds * 1e9)
    for limit, unit in ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms")):
        if nanoseconds < limit:
            return f"{_decimal(nanoseconds, limit // 1000)}{unit}" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    ahead = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{ahead}{_decimal(rest, 10**9)}s"


def stamp(name: str, when: datetime) -> str:
    """Format a time in the named format; empty for an unknown name."""
    write = _FORMATS.get(name.strip().lower())
    return write(when) if write else ""


def _decimal(value: int, unit: int) -> str:
    return f"{value / unit:.9f}".rstrip("0").rstrip(".")


def _visible(text: str) -> str:
    """Escape a client's text, so that it cannot create lines or colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _clock(when: datetime) -> str:
    return f"{when.hour:02}:{when.minute:02}:{when.second:02}"


def _fraction(when: datetime, digits: int) -> str:
    return f"{when.microsecond * 1000:09}"[:digits]


def _offset(when: datetime, colon: str = "") -> str:
    ahead = when.utcoffset()
    minutes = round(ahead.total_seconds() / 60) if ahead is not None else 0
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}{colon}{rest:02}"


def _zone(when: datetime) -> str:
    return when.tzname() or _offset(when)


def _rfc3339(when: datetime, fraction: str = "") -> str:
    offset = _offset(when, ":")
    zone = "Z" if offset == "+00:00" else offset
    return f"{when.year:04}-{when.month:02}-{when.day:02}T{_clock(when)}{fraction}{zone}"


def _nano(when: datetime) -> str:
    digits = _fraction(when, 9).rstrip("0")
    return _rfc3339(when, f".{digits}" if digits else "")


def _day(when: datetime) -> str:
    return _DAYS[when.weekday()]


def _month(when: datetime) -> str:
    return _MONTHS[when.month - 1]


def _stamp(when: datetime, digits: int = 0) -> str:
    fraction = f".{_fraction(when, digits)}" if digits else ""
    return f"{_month(when)} {when.day:2} {_clock(when)}{fraction}"


def _kitchen(when: datetime) -> str:
    return f"{when.hour % 12 or 12}:{when.minute:02}{'AM' if when.hour < 12 else 'PM'}"


def _rfc822(when: datetime, zone: str) -> str:
    return f"{when.day:02} {_month(when)} {when.year % 100:02} {when.hour:02}:{when.minute:02} {zone}"


def _rfc1123(when: datetime, zone: str) -> str:
    return f"{_day(when)[:3]}, {when.day:02} {_month(when)} {when.year:04} {_clock(when)} {zone}"


_FORMATS: dict[str, Callable[[datetime], str]] = {
    "ansic": lambda t: f"{_day(t)[:3]} {_stamp(t)} {t.year:04}",
    "unixdate": lambda t: f"{_day(t)[:3]} {_stamp(t)} {_zone(t)} {t.year:04}",
    "rubydate": lambda t: f"{_day(t)[:3]} {_month(t)} {t.day:02} {_clock(t)} {_offset(t)} {t.year:04}",
    "rfc822": lambda t: _rfc822(t, _zone(t)),
    "rfc822z": lambda t: _rfc822(t, _offset(t)),
    "rfc850": lambda t: f"{_day(t)}, {t.day:02}-{_month(t)}-{t.year % 100:02} {_clock(t)} {_zone(t)}",
    "rfc1123": lambda t: _rfc1123(t, _zone(t)),
    "rfc1123z": lambda t: _rfc1123(t, _offset(t)),
    "rfc3339": _rfc3339,
    "rfc3339nano": _nano,
    "kitchen": _kitchen,
    "stamp": _stamp,
    "stampmilli": lambda t: _stamp(t, 3),
    "stampmicro": lambda t: _stamp(t, 6),
    "stampnano": lambda t: _stamp(t, 9),
}
