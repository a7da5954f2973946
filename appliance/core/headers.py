"""The header fields of a message."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

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


def joined(headers: Sequence[tuple[bytes, bytes]], more: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return all fields; ``more`` of a name that is there goes behind its value."""
    there = {name.lower(): b", ".join(fields(headers, name.lower())) for name, _ in more}
    both = [(name, b", ".join(filter(None, (there[name.lower()], value)))) for name, value in more]
    return (*without(headers, there), *both) if more else headers


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return (field(headers, b"content-type") or b"").startswith(EVENTS)
