"""The plugins of a running program: found and loaded at the start, and again on request."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, cast

import trio
from msgspec import Struct, structs

from appliance.core.answers.families import Family, family_of
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.config.nodes import Problem
from appliance.errors import PluginFailed
from appliance.features.plugins.core.settings import CheckedSettings, Source, check_settings
from appliance.features.plugins.core.slash import Commands, SlashPlan
from appliance.features.plugins.found import Files, FoundPlugin, Scan, scan
from appliance.plugins.folders import PluginSelection, bundled_folder
from appliance.plugins.loading import HOOKS, PREFIX, BadPlugin, Plugin, PluginHooks, forget, load_hooks
from appliance.trio_parts import beside, persist, watch

FIRST_LOOK = 1.0
"""Seconds by which the first look at the folders may delay the start of the program; a slow one goes on after them."""
OF_ALL = ("enabled", "timeout")
"""Keys that every plugin has; the others are settings, and of those only the plugin's own."""
State = Literal["loading", "ready", "disabled", "error"]
log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class ListedPlugin(Struct, frozen=True, kw_only=True):
    """One plugin, as lists show it."""

    name: str
    description: str
    end_points: tuple[str, ...]
    state: State
    error: str | None = None
    warnings: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    folder: str
    hides: tuple[str, ...] = ()  # folders whose plugin of the same name it overrides
    sources: dict[str, Source] = {}  # by dotted key of config.json
    values: dict[str, object] = {}  # JSON, which may be secrets: `core.secrets` hides those


class AgentList(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/agents``, and what ``agents ls --json`` prints.

    ``problems`` are folders that cannot be read, and plugins of the configuration that are not there. ``off`` is None,
    or why there are no plugins at all, and how there would be some.
    """

    agents: list[ListedPlugin]
    folders: tuple[str, ...]
    problems: tuple[str, ...]
    off: str | None


class BadSettings(BadPlugin):
    """One line: the setting of the configuration that the plugin cannot use."""


class PluginEntry:
    """One plugin, from the moment when its folder is found. A request keeps the entry with which it began."""

    def __init__(self, found: FoundPlugin, data: Path, load: Callable[[PluginEntry], None]) -> None:
        manifest = found.manifest
        self.found = found
        self.plugin = Plugin(
            name=found.name,
            folder=found.folder,
            data=data / found.name,
            settings=cast("JsonObject", manifest.settings),  # it was JSON, and nothing has touched it since
            timeout=manifest.timeout,
        )
        self.error = found.error
        self._error_in = "agent.py" if found.error is None else "its folder"
        self._warnings = found.warnings
        self._hooks: PluginHooks | None = None
        self._load = load
        self._begun = False
        self._loaded = trio.Event()
        if found.error is not None or not manifest.enabled:
            self._loaded.set()

    @property
    def state(self) -> State:
        if self.error is not None:
            return "error"
        if not self.found.manifest.enabled:
            return "disabled"
        return "ready" if self._hooks is not None else "loading"

    def begin(self) -> None:
        """Start loading it, unless that is under way or done."""
        if not self._begun and not self._loaded.is_set():
            self._begun = True
            self._load(self)

    async def hooks(self) -> PluginHooks:
        """Wait until it is loaded, for no longer than a hook may take. Raises PluginFailed."""
        self.begin()
        if not self._loaded.is_set():
            with trio.move_on_after(self.plugin.timeout):
                await self._loaded.wait()
        if self._hooks is None:
            raise PluginFailed(self.plugin.name, self._error_in, self.error or "it is still being loaded")
        return self._hooks

    async def wait_loaded(self) -> None:
        """Wait until it can be used, or is known to be broken."""
        self.begin()
        await self._loaded.wait()

    async def load(self) -> None:
        """Run agent.py in a thread; only requests for this plugin wait for it."""
        if self._loaded.is_set():
            return
        package = f"{PREFIX}{next(_numbers)}"
        work = partial(_load, self.found, self.plugin.settings, package)
        try:
            hooks, checked = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except BadPlugin as error:
            self.error = str(error)
            self._error_in = "its settings" if isinstance(error, BadSettings) else "agent.py"
            log.warning("plugin '%s' cannot be used: %s", self.plugin.name, error, exc_info=error.__cause__)
        else:
            weakref.finalize(self, forget, package).atexit = False
            self._warnings += checked.warnings
            self.plugin = structs.replace(self.plugin, settings=checked.settings)
            for warning in checked.warnings:
                log.warning("plugin '%s': %s", self.plugin.name, warning)
            self._hooks = hooks
        self._loaded.set()

    def listed(self, hides: Sequence[Path]) -> ListedPlugin:
        hooks, settings = self._hooks, self.plugin.settings
        known = {k: v for k, v in self.found.values.items() if k in OF_ALL or k.removeprefix("settings.") in settings}
        return ListedPlugin(
            name=self.plugin.name,
            description=self.found.manifest.description,
            end_points=self.found.manifest.end_points,
            state=self.state,
            error=self.error,
            warnings=self._warnings,
            hooks=tuple(n for n in HOOKS if hooks and getattr(hooks, n)),
            folder=str(self.found.folder),
            hides=tuple(str(path) for path in hides),
            sources={key: each.source for key, each in known.items()},
            values={key: each.value for key, each in known.items()},
        )


def _load(found: FoundPlugin, settings: Mapping[str, JSON], package: str) -> tuple[PluginHooks, CheckedSettings]:
    """Raises BadPlugin, and BadSettings for the configuration's; the plugin refuses its own file's itself."""
    hooks = load_hooks(found.folder, package)
    checked = check_settings(found.name, settings, found.given.settings, hooks.settings)
    if checked.mistake is not None and found.given.settings:
        forget(package)
        raise BadSettings(checked.mistake)
    told = (checked.mistake,) if checked.mistake is not None else ()
    return hooks, structs.replace(checked, warnings=(*checked.warnings, *told))


class Plugins:
    """Owns the loaded plugins. Made by `open_plugins`; it answers from the last look at the folders."""

    def __init__(self, choice: PluginSelection, load: Callable[[PluginEntry], None], data: Path) -> None:
        self.choice = choice  # the choice of plugins. After a change, have the folders searched again.
        self._load = load
        self._data = data
        self.entries: dict[str, PluginEntry] = {}
        self.commands: dict[Family, Commands] = {}  # the names that requests of each kind may use
        self._scan = Scan()
        self._looking = trio.Lock()

    def listed(self) -> AgentList:
        """Return the plugins as known now, with the secrets in their settings."""
        hidden = self._scan.hidden
        return AgentList(
            agents=[entry.listed(hidden.get(name, ())) for name, entry in self.entries.items()],
            folders=tuple(map(str, self.choice.folders)),
            problems=self.problems,
            off=self.choice.off,
        )

    def plan(self, path: str, body: bytes) -> SlashPlan | None:
        """Return None for a request that names no plugin: nearly all. Raises BadRequest."""
        family = family_of(path)
        commands = self.commands.get(family) if family is not None else None
        return commands.plan(body) if commands is not None else None

    @property
    def unknown(self) -> tuple[Problem, ...]:
        """Return the plugins that the configuration names and that do not exist."""
        return self._scan.unknown

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self._scan.problems, *(f"{each.path}: {each.message}" for each in self._scan.unknown))

    async def look(self) -> None:
        """Look into the folders. Unchanged plugins stay loaded; new ones start to load."""
        async with self._looking:
            found = await self._search()
            before, self.entries = self.entries, {}
            for each in found.found:
                old = before.get(each.name)
                if old is not None and old.found == each and old.error is None:
                    self.entries[each.name] = old
                    continue
                self.entries[each.name] = entry = PluginEntry(each, self._data, self._load)
                for line in (each.error, *each.warnings):
                    if line:
                        log.warning("plugin '%s': %s", each.name, line)
                if each.given.settings or each.folder.parent != bundled_folder():  # those cost 3 MB, and work
                    entry.begin()
            before_problems, self._scan = self.problems, found
            if self.problems != before_problems:
                for problem in self.problems:
                    log.warning("%s", problem)
            self.commands = _commands(self.entries)

    def begin(self) -> None:
        """Load all plugins, even those that nobody has asked for yet."""
        for entry in self.entries.values():
            entry.begin()

    async def wait_loaded(self) -> None:
        """Wait until every plugin is loaded, or has failed."""
        for entry in list(self.entries.values()):
            await entry.wait_loaded()

    async def watch(self) -> None:
        """Look again whenever files of plugins have changed; never returns."""
        await watch(self._files, self.look, seen=self._scan.files())

    async def _files(self) -> Files:
        return (await self._search()).files()

    async def _search(self) -> Scan:
        return await trio.to_thread.run_sync(scan, self.choice, abandon_on_cancel=True)


def _commands(entries: Mapping[str, PluginEntry]) -> dict[Family, Commands]:
    """A broken plugin is also a command: a request for it gets its error. One that is switched off is not."""
    usable = [entry for entry in entries.values() if entry.found.manifest.enabled]
    names = {f: [entry.plugin.name for entry in usable if f in entry.found.manifest.families] for f in Family}
    return {family: Commands(family, of) for family, of in names.items() if of}


@asynccontextmanager
async def open_plugins(choice: PluginSelection, data: Path, *, watch: bool = False) -> AsyncGenerator[Plugins]:
    """Find the plugins, and load them in the background, the bundled ones on first use; requests wait for the load.

    With ``watch`` the folders are searched again when their files change.
    """
    async with beside() as nursery:
        plugins = Plugins(choice, lambda entry: nursery.start_soon(persist, "loading a plugin", entry.load), data)
        looked = trio.Event()

        async def look() -> None:
            await plugins.look()
            looked.set()
            if watch:
                await plugins.watch()

        nursery.start_soon(persist, "looking for plugins", look)
        with trio.move_on_after(FIRST_LOOK):
            await looked.wait()
        yield plugins
