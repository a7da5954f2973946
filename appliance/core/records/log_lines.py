"""The program's own log lines in llama-swap's form: levels, time stamps, the line of a finished request.

Source: llama-swap 0bdb3720; the time formats are those of Go's ``time`` package, whose names it uses.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

Level = Literal["debug", "info", "warn", "error"]
LogToStdout = Literal["proxy", "upstream", "both", "none"]
LogSource = Literal["proxy", "upstream"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")
QUIET_PATHS = ("/wol-health", "/api/performance", "/metrics", "/pool/reverse")
"""Paths that are requested all the time; a request for them is not worth a line."""

# The days and months of strftime are English as long as nobody calls locale.setlocale, and nobody does: other programs
# read these lines. "%e" is not on Windows, and Go's nanoseconds are not in Python.
_STAMP = "{t:%b} {t.day:2} {t:%H:%M:%S}"
_FORMATS = {
    "ansic": "{t:%a} " + _STAMP + " {t:%Y}",
    "unixdate": "{t:%a} " + _STAMP + " {zone} {t:%Y}",
    "rubydate": "{t:%a %b %d %H:%M:%S %z %Y}",
    "rfc822": "{t:%d %b %y %H:%M} {zone}",
    "rfc822z": "{t:%d %b %y %H:%M %z}",
    "rfc850": "{t:%A, %d-%b-%y %H:%M:%S} {zone}",
    "rfc1123": "{t:%a, %d %b %Y %H:%M:%S} {zone}",
    "rfc1123z": "{t:%a, %d %b %Y %H:%M:%S %z}",
    "rfc3339": "{t:%Y-%m-%dT%H:%M:%S}{offset}",
    "rfc3339nano": "{t:%Y-%m-%dT%H:%M:%S}{fraction}{offset}",
    "kitchen": "{hour}:{t:%M%p}",
    "stamp": _STAMP,
    "stampmilli": _STAMP + ".{milliseconds:03}",
    "stampmicro": _STAMP + ".{t:%f}",
    "stampnano": _STAMP + ".{t:%f}000",
}
"""By the name in ``logTimeFormat``."""


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
    return _FORMATS.get(name.strip().lower(), "").format(
        t=when,
        zone=when.tzname() or f"{when:%z}",
        offset=when.isoformat(timespec="seconds")[19:].replace("+00:00", "Z"),
        hour=when.hour % 12 or 12,
        milliseconds=when.microsecond // 1000,
        fraction=f".{when:%f}".rstrip("0").rstrip("."),
    )


def _decimal(value: int, unit: int) -> str:
    return f"{value / unit:.9f}".rstrip("0").rstrip(".")


def _visible(text: str) -> str:
    """Escape a client's text, so that it cannot create lines or colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
