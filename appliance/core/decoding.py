"""JSON of strangers, read or not."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""All that msgspec raises for bytes that are not the JSON that was expected: also for text that is not UTF-8, and for
text that is nested too deeply.
"""


def decoded(kind: type[T] | Decoder[T], raw: bytes | bytearray | str | Raw) -> T | None:
    """Return the value, or None for anything but JSON of this kind. A decoder saves making one."""
    try:
        return kind.decode(raw) if isinstance(kind, Decoder) else msgspec.json.decode(raw, type=kind)
    except UNREADABLE:
        return None
