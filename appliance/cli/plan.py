"""The result of parsing a command line: a server, or a command that needs the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from appliance.settings import AppSettings

AsyncCommand = Callable[[], Awaitable[int]]
"""A command that needs the event loop; its result is the exit status."""


class Later(Struct, frozen=True):
    """A server whose models have to be fetched before the program knows what kind of server it is."""

    prepare: Callable[[], Awaitable[AppSettings | int]]
    """Returns the settings, or the exit status if the program ends before."""


Program = AppSettings | Later | AsyncCommand
Start = Callable[[Program], int]
"""Runs a program to its end. ``__main__`` provides it, because event loops start only there."""
