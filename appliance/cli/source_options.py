"""The options that say where models, configurations and plugins are, for every verb that looks at the disk itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from msgspec import structs

from appliance.catalog.sources import STARTER, Sources, resolve_sources
from appliance.core.config.types import Config
from appliance.errors import UsageError

T = TypeVar("T")


def source_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--config`` and ``--config-dir``: where a configuration is read from."""
    for option in (
        click.option(
            "--config-dir", type=click.Path(path_type=Path), metavar="DIR", help="Folder with .yml and .yaml files."
        ),
        click.option(
            "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file."
        ),
    ):
        command = option(command)
    return command


def catalog_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--model``, ``--models-dir``, ``--stores`` and ``--no-starter``: the arguments of `sources_of`."""
    for option in (
        click.option(
            "--stores/--no-stores", default=True, help="Also use the models of LM Studio and Ollama, in place."
        ),
        click.option("--no-starter", is_flag=True, help="Leave out the starter model that ships with the program."),
        click.option("--models-dir", metavar="DIR", help="Folder with models, instead of the usual one."),
        click.option(
            "--model", "models", multiple=True, metavar="[ID=]PATH", help="A model file. May be given several times."
        ),
    ):
        command = option(command)
    return command


def sources_beside(
    config: Config, models: tuple[str, ...], models_dir: str | None, no_starter: bool, stores: bool
) -> Sources:
    """The same beside a configuration: models named here are added to the configuration's own."""
    if not config.models:
        return sources_of(models, models_dir, no_starter, stores)
    found = sources_of(models, models_dir, no_starter, stores=False)
    return structs.replace(found, models_dir=found.models_dir if models_dir else None, cache=None, starter=None)


def sources_of(models: tuple[str, ...], models_dir: str | None, no_starter: bool, stores: bool) -> Sources:
    """Return where these options look for models. Raises UsageError for a missing file or folder."""
    return resolve_sources(
        models=models,
        models_dir=models_dir,
        environ=os.environ,
        home=Path.home(),
        starter=None if no_starter else STARTER,
        stores=stores,
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
