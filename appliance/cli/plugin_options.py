"""The option that says where plugins are, beside those that are shipped along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from appliance.core.config.types import Config
from appliance.errors import UsageError
from appliance.plugins.folders import plugin_folders

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


def existing(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The folders as absolute paths. Raises UsageError for one that is not there."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"there is no folder {folder}; check --plugins, which takes a folder that has plugins in it"
            )
    return tuple(folder.absolute() for folder in folders)


def folders_of(config: Config | None, named: Sequence[Path] | None) -> tuple[Path, ...]:
    """Where plugins are looked for: in the program's own folder, those of the configuration, those ``named``.

    Without ``named`` nowhere: whoever stands in for another program takes no text for a command.
    """
    if named is None:
        return ()
    configured = config.plugins_dir if config is not None else ""
    listed = [configured] if isinstance(configured, str) else configured
    return plugin_folders(*(Path(folder) for folder in listed if folder), *named)
