"""What a command line asks for, as values: the border between parsing and doing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from appliance.core.settings import FleetSettings, HttpSettings


class CatalogChoice(Struct, frozen=True, kw_only=True):
    """Which models there are, beyond those of the user's models folder."""

    models: tuple[tuple[str | None, Path], ...] = ()
    """(id, file); without an id the file's name becomes one."""
    models_dirs: tuple[Path, ...] = ()
    starter: bool = True


class AppSettings(Struct, frozen=True, kw_only=True):
    """A whole server."""

    http: HttpSettings
    fleet: FleetSettings
    catalog: CatalogChoice
    engine: str | None = None
    preload: tuple[str, ...] = ()
    must_load: bool = False
    """The program ends when a preloaded model cannot be loaded (llama-server's single-model mode)."""


AsyncCommand = Callable[[], Awaitable[int]]
"""A command that needs the event loop; its result is the exit status."""

Program = AppSettings | AsyncCommand
Start = Callable[[Program], int]
"""Runs a program to its end. ``__main__`` gives it, because event loops start there and nowhere else."""
