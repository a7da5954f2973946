"""The configuration in force: read from its files at the start, and again when it is asked for or they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from appliance.catalog.config_files import Files
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.errors import ApplianceError, Conflict, InvalidConfig, UsageError

WATCH_EVERY = 2.0
"""Seconds between two looks at the files; llama-swap's number."""

log = logging.getLogger(__name__)


class Reloaded(Struct, frozen=True, kw_only=True):
    """What a reload has done. ``changed`` are the models whose processes are replaced."""

    warnings: tuple[Problem, ...]
    changed: tuple[str, ...]


Follower = Callable[[Config], Iterable[str]]
"""Puts another configuration into force; the result are the ids of models whose processes are replaced for it."""


class Configuration:
    """Owns the configuration in force, and those who follow it, in the order in which they have come."""

    def __init__(self, files: Files, config: Config) -> None:
        self.current = config
        self.followers: list[Follower] = []
        self._files = files
        self._reloading = False

    async def reload(self) -> Reloaded:
        """Read the files again and follow them. An error changes nothing.

        Raises InvalidConfig, UsageError for files that cannot be read, and Conflict while another reload is under way.
        """
        if self._reloading:
            raise Conflict("the configuration is being read at this moment; ask again when that is done")
        self._reloading = True
        try:
            loaded = await trio.to_thread.run_sync(self._files.read, _ports(self.current))
            config = loaded.require()
            before, self.current = self.current, config
            try:
                changed = [model for follower in self.followers for model in follower(config)]
            except ApplianceError:
                self.current = before  # the first follower refuses what cannot be followed
                raise
        finally:
            self._reloading = False
        log.info("the configuration was read again; %d models are restarted for it", len(changed))
        for warning in loaded.warnings:
            log.warning("%s", warning)
        return Reloaded(warnings=loaded.warnings, changed=tuple(changed))

    async def reload_quietly(self) -> None:
        """The same where nobody waits for an answer: the log tells."""
        try:
            await self.reload()
        except (InvalidConfig, UsageError, Conflict) as error:
            log.warning("the configuration was not reloaded, the old one stays: %s", error)
        except ApplianceError as error:
            log.error("the configuration was not reloaded, the old one stays: %s", error)

    async def watch(self) -> None:
        """Reload whenever the files have changed; never returns. Files that vanish are waited for."""
        seen = await trio.to_thread.run_sync(self._files.signature)
        while True:
            await trio.sleep(WATCH_EVERY)
            now = await trio.to_thread.run_sync(self._files.signature)
            if now and now != seen:
                seen = now
                await self.reload_quietly()


def _ports(config: Config) -> dict[str, int]:
    """The port of each model, for those that get one from ``${PORT}`` to keep it."""
    found: dict[str, int] = {}
    for model_id, model in config.models.items():
        try:
            port = urlsplit(model.proxy).port
        except ValueError:
            continue
        if port is not None and str(port) in model.cmd:
            found[model_id] = port
    return found
