"""The configuration in force: read from its files at the start, and again when it is asked for or they change.

`Reloads` are all the parts that can be read again while the program runs: the configuration, and presets. Either may be
missing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.config_files import Files
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.errors import ApplianceError, Conflict, InvalidConfig
from appliance.trio_parts import persist

WATCH_EVERY = 1.0
"""Seconds between two looks at the files."""
SETTLED = 0.25
"""A file that has not changed for so long is written: half of a configuration would be one with fewer models."""
FIXED: tuple[tuple[str, Callable[[Config], object]], ...] = (
    ("store", lambda config: config.store),
    ("metricsMaxInMemory", lambda config: config.metrics_max_in_memory),
    ("performance", lambda config: config.performance),
    ("models", lambda config: bool(config.models)),
    ("tools", lambda config: config.tools),
    ("mcp_servers", lambda config: config.mcp_servers),
)
"""The settings of the program's start. Without models, those on this machine's disk are served instead."""

log = logging.getLogger(__name__)


class Reloaded(Struct, frozen=True, kw_only=True):
    """The outcome of a reload. ``changed`` are the models whose processes are replaced, or end."""

    warnings: tuple[Problem, ...]
    changed: tuple[str, ...]


Follower = Callable[[Config], Iterable[str]]
"""Puts another configuration into force; the result are the ids of models whose processes are replaced for it."""


class Configuration:
    """Owns the configuration in force, and those who follow it, in the order in which they have come.

    ``ports`` are what its models were given. A model keeps its port until ``startPort`` changes, also while it is not
    in the files: others then never listen where its last process may still do.
    """

    def __init__(
        self, files: Files, config: Config, ports: Mapping[str, int], followers: Sequence[Follower] = ()
    ) -> None:
        self.current = config
        self._followers = followers
        self._files = files
        self._first = config
        self._ports = dict(ports)
        self._reading: trio.Event | None = None

    async def reload(self) -> Reloaded:
        """Read the files again and follow them. An error is also logged, and changes nothing.

        Raises InvalidConfig, UsageError for files that cannot be read, and Conflict while another reload is under way.
        """
        if self._reading is not None:
            raise Conflict("the configuration is being read at this moment; ask again when that is done")
        self._reading = trio.Event()
        try:
            return await self._reload()
        except ApplianceError as error:
            _tell(error, "the configuration was not read again, the old one stays")
            raise
        finally:
            self._reading.set()
            self._reading = None

    async def reload_quietly(self) -> None:
        """The same where nobody waits for an answer, after any reload that may have read the files too early."""
        while self._reading is not None:
            await self._reading.wait()
        with suppress(ApplianceError):
            await self.reload()

    async def watch(self, reload: Callable[[], Awaitable[None]] | None = None) -> None:
        """Reload whenever the files have changed, also since they were read first; never returns.

        ``reload`` is what to do if there is more to it. Files that vanish are waited for.
        """
        reload = reload or self.reload_quietly
        seen = None
        while True:
            now = await trio.to_thread.run_sync(self._files.signature)
            if not now or now == seen:
                await trio.sleep(WATCH_EVERY)
                continue
            await trio.sleep(SETTLED)
            if await trio.to_thread.run_sync(self._files.signature) == now:
                seen = now
                await reload()

    async def _reload(self) -> Reloaded:
        loaded = await trio.to_thread.run_sync(self._files.read, self._ports)
        config = loaded.require()
        if config.start_port != self.current.start_port:  # somebody wants other ports
            loaded = await trio.to_thread.run_sync(self._files.read)
            config = loaded.require()
        warnings = (*loaded.warnings, *_too_late(self._first, config))
        if _same(config, self.current):
            log.debug("the configuration was read again, and says what it said")
            return Reloaded(warnings=warnings, changed=())
        before, self.current = self.current, config
        try:
            changed = [model for follower in self._followers for model in follower(config)]
        except ApplianceError:
            self.current = before  # only the first ones refuse, and change nothing then
            raise
        self._ports |= loaded.ports
        log.info("the configuration was read again; processes out of date: %s", ", ".join(changed) or "none")
        for warning in warnings:
            log.warning("%s", warning)
        return Reloaded(warnings=warnings, changed=tuple(changed))


def _same(one: Config, other: Config) -> bool:
    """The order of keys counts, too: that of a matrix decides between sets that are equally good."""
    return one is other or msgspec.json.encode(one) == msgspec.json.encode(other)


def _too_late(first: Config, now: Config) -> list[Problem]:
    """Report changes in the files that the running program cannot follow."""
    message = "cannot change while the program runs; restart it for this to apply"
    return [Problem(message=message, path=path, level="warning") for path, of in FIXED if of(first) != of(now)]


def _tell(error: ApplianceError, outcome: str) -> None:
    """Log one record for each line."""
    mistakes = error.problems if isinstance(error, InvalidConfig) else (error,)
    log.warning(outcome)
    for mistake in mistakes:
        log.warning("%s", mistake)


Follow = Callable[[Snapshot], Iterable[str]]
"""Applies other models; returns the ids of those whose processes are replaced."""


Beside = Callable[[], Awaitable[Sequence[Problem]]]
"""Looks at something else again, whether or not the files have changed; returns its oddities."""


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
            _tell(error, "the presets were not read again, the old ones stay")
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
                watch = partial(self._configuration.watch, self._reload_configuration_quietly)
                nursery.start_soon(persist, "watching the configuration", watch)
            nursery.start_soon(persist, "watching the presets", self._watch_presets)

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
