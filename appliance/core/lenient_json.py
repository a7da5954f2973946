"""JSON from outside, which may be anything: read without an error."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

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
