"""The parts that can be read again while the program runs: the configuration, and presets. Either may be missing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import trio

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.configuration import SETTLED, WATCH_EVERY, Configuration, Reloaded
from appliance.core.config.nodes import Problem
from appliance.errors import ApplianceError, InvalidConfig

log = logging.getLogger(__name__)

Follow = Callable[[Snapshot], Iterable[str]]
"""Applies other models; returns the ids of those whose processes are replaced."""


Beside = Callable[[], Awaitable[Sequence[Problem]]]
"""Looks at something else again, whether or not the files say something new; the result is what is odd there."""


class Reloads:
    """Reads both again, on demand or when a file changes; a mistake in one of them leaves it as it is."""

    def __init__(
        self, configuration: Configuration | None, catalog: Catalog, follow: Follow, beside: Beside | None = None
    ) -> None:
        self._configuration = configuration
        self._catalog = catalog
        self._follow = follow
        self._beside = beside

    @property
    def presets(self) -> bool:
        """True if there is a preset file."""
        presets = self._catalog.sources.presets
        return presets is not None and presets.file is not None

    @property
    def anything(self) -> bool:
        return self.presets or self._configuration is not None

    async def reload(self) -> Reloaded:
        """Read everything again, including the folders with models.

        Raises InvalidConfig, UsageError for files that cannot be read, and Conflict while the configuration is being
        read.
        """
        done = Reloaded(warnings=(), changed=())
        if self._configuration is not None:
            done = await self._configuration.reload()
        if self.presets:
            again = await self.reload_presets()
            both = dict.fromkeys((*done.changed, *again.changed))
            done = Reloaded(warnings=(*done.warnings, *again.warnings), changed=tuple(both))
        return Reloaded(warnings=(*done.warnings, *await self._look_beside()), changed=done.changed)

    async def reload_presets(self) -> Reloaded:
        """Read the presets again. Processes of unchanged models continue. A mistake is also logged, and changes
        nothing.
        """
        try:
            snapshot = await trio.to_thread.run_sync(self._catalog.scan)
        except ApplianceError as error:
            _tell(error)
            raise
        changed = tuple(self._follow(snapshot))
        what = "the presets were read" if self.presets else "models were looked for"
        log.info("%s again; processes out of date: %s", what, ", ".join(changed) or "none")
        for warning in self._catalog.preset_notes:
            log.warning("%s", warning)
        return Reloaded(warnings=tuple(self._catalog.preset_notes), changed=changed)

    async def reload_quietly(self) -> None:
        """The same if nobody waits for an answer."""
        if self._configuration is not None:
            await self._configuration.reload_quietly()
        await self._reload_presets_quietly()
        await self._look_beside()

    async def watch(self) -> None:
        """Reload whenever a file has changed; never returns."""
        async with trio.open_nursery() as nursery:
            if self._configuration is not None:
                nursery.start_soon(self._configuration.watch, self._reload_configuration_quietly)
            nursery.start_soon(self._watch_presets)

    async def _reload_configuration_quietly(self) -> None:
        if self._configuration is not None:
            await self._configuration.reload_quietly()
        await self._look_beside()

    async def _look_beside(self) -> list[Problem]:
        return [*await self._beside()] if self._beside is not None else []

    async def _watch_presets(self) -> None:
        presets = self._catalog.sources.presets
        seen = None
        while presets is not None:
            now = await trio.to_thread.run_sync(presets.signature)
            if now is None or now == seen:
                await trio.sleep(WATCH_EVERY)
                continue
            await trio.sleep(SETTLED)
            if await trio.to_thread.run_sync(presets.signature) == now:
                seen = now
                await self._reload_presets_quietly()

    async def _reload_presets_quietly(self) -> None:
        with suppress(ApplianceError):
            if self.presets:
                await self.reload_presets()


def _tell(error: ApplianceError) -> None:
    """Log one record for each line, as a log wants it."""
    log.warning("the presets were not read again, the old ones stay")
    for mistake in error.problems if isinstance(error, InvalidConfig) else (error,):
        log.warning("%s", mistake)
