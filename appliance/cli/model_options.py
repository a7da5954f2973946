"""The options that select models, for the verbs that look at the disk themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from msgspec import structs

from appliance.catalog.sources import STARTER, Sources, resolve_sources
from appliance.core.config.types import Config

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
