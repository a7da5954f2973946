"""The options that switch plugins on and off and say where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from appliance.errors import UsageError

T = TypeVar("T")


def plugin_option(command: Callable[..., T]) -> Callable[..., T]:
    """``--plugins``, as the parameter ``plugins``: a tuple of folders."""
    return click.option(
        "--plugins",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder with plugins. May be given several times.",
    )(command)


def no_plugins_option(command: Callable[..., T]) -> Callable[..., T]:
    """``--no-plugins``, as the parameter ``no_plugins``."""
    return click.option("--no-plugins", is_flag=True, help="Disable plugins and slash commands.")(command)


def named(folders: Sequence[Path], *, none: bool) -> tuple[Path, ...] | None:
    """Return the folders of the two options, or None for no plugins at all. Raises UsageError."""
    if none and folders:
        raise UsageError("--no-plugins and --plugins contradict each other; leave out one of them")
    return None if none else existing(folders)


def existing(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders as absolute paths. Raises UsageError for a missing one."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}; --plugins takes a folder that contains plugins")
    return tuple(folder.absolute() for folder in folders)
