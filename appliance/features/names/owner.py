"""Puts aliases and the fallback into force, by the command line and the configuration of the moment."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.core.config.types import Config
from appliance.core.models.model import Model
from appliance.errors import UsageError
from appliance.feature import Assembled
from appliance.features.names.rules import hidden_name, read_aliases, takes_fallback, with_aliases
from appliance.settings import AppSettings

log = logging.getLogger(__name__)


def refuse_hidden(settings: AppSettings) -> None:
    """Look at the folders for models that an alias hides. Raises UsageError; call it in a thread."""
    aliases = _all(settings, settings.config)
    if aliases:
        _refuse(aliases, _seen(settings.sources, settings.config))


class GivenNames:
    """Owns what is in force for the length of a server."""

    def __init__(self, settings: AppSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._told: set[str] = set()
        catalog.amended = self.amend
        if _all(settings, settings.config):
            catalog.adopt(settings.config)  # what was found before has its aliases from now on, too

    def amend(self, models: list[Model], config: Config | None) -> tuple[list[Model], list[str]]:
        """See `Catalog.amended`. Each note is logged once, and none before the first look at the folders."""
        aliases = _all(self._settings, config)
        if not aliases:
            return models, []
        known = config or Config()
        peers = (name for id, peer in known.peers.items() for model in peer.models for name in (model, f"{id}/{model}"))
        named, notes = with_aliases(models, aliases, {*known.selectors, *peers})
        if not self._catalog.is_fresh(math.inf):
            return named, []
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                log.warning("%s", note)
        return named, notes

    def adopt(self, config: Config) -> Sequence[str]:
        """See `ServerParts.adopt`. The catalog follows by itself. Raises UsageError for an alias that hides a model."""
        if config is not self._settings.config:
            _refuse(_all(self._settings, config), [model.id for model in self._catalog.snapshot.models])
        return ()

    async def sign_in(self, assembled: Callable[[], Awaitable[Assembled]]) -> None:
        """Give the program its fallback, as soon as it is put together."""
        targets = (await assembled()).kernel.traffic.targets

        def fallback(name: str, route: str) -> str:
            config = targets.config or Config()
            model = self._settings.fallback_model or config.fallback_model
            if not model or not takes_fallback(name, route, config):
                return ""
            means = targets.router().resolve(name) is not None or targets.stands_for(name) is not None
            return "" if means else model

        targets.fallback = fallback


def _all(settings: AppSettings, config: Config | None) -> dict[str, str]:
    return {**(config.aliases if config is not None else {}), **read_aliases(settings.aliases)}


def _refuse(aliases: Mapping[str, str], models: Sequence[str]) -> None:
    if (why := hidden_name(aliases, models)) is not None:
        raise UsageError(why)


def _seen(sources: ModelFolders, config: Config | None) -> list[str]:
    catalog = Catalog(sources, config)
    catalog.look()
    return [model.id for model in catalog.snapshot.models]
