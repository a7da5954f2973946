"""What a command line leads to."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from appliance.settings import AppSettings, Program


class Outcome(Struct, frozen=True, kw_only=True):
    """What a command line led to. ``program`` is what would have been started."""

    status: int
    out: str
    err: str
    program: Program | None


Command = Callable[..., Outcome]


def settings_of(command: Command, *argv: str) -> AppSettings:
    """The server that this command line would start."""
    outcome = command(*argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program
