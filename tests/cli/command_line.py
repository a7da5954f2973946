"""What a command line leads to."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from appliance.settings import Program


class Outcome(Struct, frozen=True, kw_only=True):
    """What a command line led to. ``program`` is what would have been started."""

    status: int
    out: str
    err: str
    program: Program | None


Command = Callable[..., Outcome]
