"""The purpose of one start of the program: the settings of a whole server, or a command that needs the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.catalog.sources import ModelFolders
from appliance.core.config.nodes import NO_PORTS
from appliance.core.config.types import Config
from appliance.core.settings import Embedding, FleetSettings, HttpSettings, ToolSettings

if TYPE_CHECKING:
    from appliance.catalog.configuration import Files  # with trio, which --help does without


class AppSettings(Struct, frozen=True, kw_only=True):
    """A whole server. With ``http.single`` it is llama-server's single-model mode, and ends if the model fails."""

    http: HttpSettings
    fleet: FleetSettings
    tools: ToolSettings = ToolSettings()
    embedding: Embedding = Embedding()
    sources: ModelFolders
    files: Files | None = None
    """The files that the configuration was read from; None if there is none."""
    config: Config | None = None
    ports: Mapping[str, int] = NO_PORTS
    """The ports that its models were given for ``${PORT}``."""
    watch_config: bool = False
    plugins: tuple[Path, ...] | None = None
    """Folders of plugins besides those of the program and of the configuration; None switches plugins off.

    With none of them, and a configuration that says nothing of plugins, there are no plugins either.
    """
    allow_unauthenticated: bool = False
    """The user asked to listen beyond this machine without a key."""
    offline: bool = False
    """No configuration may name another machine, not a later one either."""
    engine: str | None = None
    port_of_engine: bool = False
    """The port is the one on which the engine's own server would listen, whatever ``http.listen`` says."""
    conversations: bool = True
    """The page's conversations are kept on this machine, if the configuration does not say otherwise."""
    preload: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Further names for models, as ``NAME=MODEL``; they come before those of the configuration."""
    fallback_model: str = ""
    """The model for names that mean nothing, whatever the configuration says."""
    trial: bool = False
    """A server beside the real one, to see whether this version works: it loads nothing that nobody asks for."""
    hub_token: str | None = None
    """The account for downloads; None is the account that is logged in."""
    echo: bool = False
    """The output of model processes also goes to standard error."""
    quiet: bool = False
    """Nothing but errors goes to standard error."""
    log_file: str | None = None
    """Also gets what goes to standard error."""


AsyncCommand = Coroutine[object, None, int | None]
"""A command that needs the event loop; its result is the exit status, and None is 0."""


class Later(Struct, frozen=True):
    """A server whose models have to be fetched before the program knows what kind of server it is."""

    prepare: Callable[[], Awaitable[AppSettings | int]]
    """Returns the settings, or the exit status if the program ends before."""


Program = AppSettings | Later | AsyncCommand
Start = Callable[[Program], int]
"""Runs a program to its end. ``__main__`` provides it, because event loops start only there."""
