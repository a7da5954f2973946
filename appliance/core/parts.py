"""The parts that every room uses: sizes in bytes, JSON and parameters of strangers, and the headers of a message."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from appliance.errors import BadRequest

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Every error that msgspec raises for bytes that are not the expected JSON: also for text that is not UTF-8, and for
text that is nested too deeply.
"""


def decoded(kind: type[T] | Decoder[T], raw: bytes | bytearray | str | Raw) -> T | None:
    """Return the value, or None for anything but JSON of this kind. A decoder saves making one."""
    try:
        return kind.decode(raw) if isinstance(kind, Decoder) else msgspec.json.decode(raw, type=kind)
    except UNREADABLE:
        return None


_WHOLE = re.compile(r"[0-9]{1,18}")
"""Every such number fits into the 64 bits of SQLite and of other programs."""
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def read_whole(text: str, name: str, least: int = 0, most: int | None = None) -> int:
    """Read a parameter that is a whole number. Raises BadRequest, which names it."""
    number = int(text) if _WHOLE.fullmatch(text) else least - 1
    if number < least or (most is not None and number > most):
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


def shown(text: str) -> str:
    """Return a text of a client for a message: quoted, and its beginning if it is long."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


Headers = Sequence[tuple[bytes, bytes]]
"""The fields of a head in their order, names as they came. The functions below want names in small letters."""
EVENTS = b"text/event-stream"


def field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first field of this name."""
    return next((value for each, value in headers if len(each) == len(name) and each.lower() == name), None)


def fields(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return the values of all fields of this name."""
    return [value for each, value in headers if len(each) == len(name) and each.lower() == name]


def without(
    headers: Iterable[tuple[bytes, bytes]], names: Container[bytes], prefixes: tuple[bytes, ...] = ()
) -> list[tuple[bytes, bytes]]:
    """Return all fields but those of these names, and those whose names begin with one of ``prefixes``."""
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower()) not in names and not (prefixes and low.startswith(prefixes))
    ]


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return (field(headers, b"content-type") or b"").startswith(EVENTS)
