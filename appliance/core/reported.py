"""The parts of facts that a support bundle may have: sizes, counts, switches, and words that look like names of parts.

A free text can hold anything: a prompt in an error message, a name in a path, a key in a command. So a report has none.
"""

from __future__ import annotations

import re
from typing import cast

from msgspec import Struct

SET = "set"  # stands for a value that is not shown
_BUILD = re.compile(r"[a-z0-9]+-[a-z0-9_]+-[a-z0-9_]+/[A-Za-z0-9._+-]{1,60}|embedded")
_DEVICE = re.compile(r"[A-Za-z]{1,12}[0-9]{0,3}")
_PART = re.compile(r"[\w .,:()/@+~#*'-]{1,100}")


def part(text: str) -> str:
    """Return the name of a part of the machine, if it looks like one."""
    return text if not text or _PART.fullmatch(text) else SET


def build_id(build: str) -> str:
    """Return a build's id; the path of a program that is not a build stays here."""
    return build if not build or _BUILD.fullmatch(build) else "a program"


def seat_id(seat: str) -> str:
    """Return the id of a build's seat; of another seat only that it is one."""
    build, _, devices = seat.rpartition(":")
    known = all(map(_DEVICE.fullmatch, devices.split("+")))
    return f"{build_id(build)}:{devices}" if build and known else build_id(seat)


def kept(fact: Struct, fields: str) -> dict[str, object]:
    """Return the named fields. Of words only those that look like the name of a part."""
    found: dict[str, object] = {}
    for name in fields.split():
        value = getattr(fact, name)
        if isinstance(value, tuple):
            value = [part(word) for word in cast("tuple[str, ...]", value)]
        found[name] = part(value) if isinstance(value, str) else value
    return found
