"""The options that switch plugins on and off and say where they are, together with the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from appliance.core.config.types import Config
from appliance.errors import UsageError
from appliance.plugins.configured import Choice
from appliance.plugins.folders import plugin_folders

T = TypeVar("T")
STARTED_WITHOUT = "plugins are off: the program was started without them, by --no-plugins or as llama-server"
CONFIGURED_WITHOUT = (
    "plugins are off: a configuration that does not mention plugins switches them off, as in llama-swap; "
    "put 'plugins: {}' into it, or start the program with --plugins DIR"
)


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


def choice_of(config: Config | None, folders: Sequence[Path] | None) -> Choice:
    """Which plugins there are: those in the program's own folder, those of the configuration, those in ``folders``.

    There are none without ``folders`` (None), and none where a configuration says nothing of them and no folder is
    named: whoever stands in for another program takes no text for a command.
    """
    if folders is None:
        return Choice(off=STARTED_WITHOUT)
    if config is None:
        return Choice(folders=plugin_folders(*folders))
    told = config.plugins_dir
    configured = [Path(folder) for folder in ([told] if isinstance(told, str) else told) if folder]
    if not (configured or folders or config.plugins is not None):
        return Choice(off=CONFIGURED_WITHOUT)
    return Choice(folders=plugin_folders(*configured, *folders), given=config.plugins or {})
