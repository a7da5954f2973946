"""The plugins of a running program: found and loaded at the start, and again when somebody asks for it."""

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
from msgspec import Struct

from appliance.core.json_values import JsonObject
from appliance.core.slash import Commands, Family
from appliance.errors import PluginFailed
from appliance.plugins.context import Plugin
from appliance.plugins.folders import Files, Found, Scan, scan
from appliance.plugins.loading import PREFIX, BadPlugin, Hooks, forget, load_hooks

WATCH_EVERY = 1.0
"""Seconds between two looks at the folders, where changes are followed."""
SETTLED = 0.25
"""A file that has not changed for so long is written."""
FIRST_LOOK = 1.0
"""Seconds that the first look at the folders may delay the start of the program; on a slow disk it goes on."""

State = Literal["loading", "ready", "disabled", "error"]
log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Listed(Struct, frozen=True, kw_only=True):
    """One plugin as lists show it."""

    name: str
    description: str
    end_points: tuple[str, ...]
    state: State
    error: str | None = None
    warnings: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    folder: str
    hides: tuple[str, ...] = ()
    """Folders whose plugin of the same name it takes the place of."""


class Entry:
    """One plugin, from when its folder is found. A request holds the entry that it began with."""

    def __init__(self, found: Found, data: Path) -> None:
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
        self._hooks: Hooks | None = None
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

    async def hooks(self) -> Hooks:
        """Wait until it is loaded, for no longer than a hook may take. Raises PluginFailed."""
        if not self._loaded.is_set():
            with trio.move_on_after(self.plugin.timeout):
                await self._loaded.wait()
        if self._hooks is None:
            raise PluginFailed(self.plugin.name, "agent.py", self.error or "it is still being loaded")
        return self._hooks

    async def wait_loaded(self) -> None:
        """Until it can be used, or is known not to be."""
        await self._loaded.wait()

    async def load(self) -> None:
        """Run agent.py in a thread; however long that takes, it holds up nobody but who asks for this plugin."""
        if self._loaded.is_set():
            return
        package = f"{PREFIX}{next(_numbers)}"
        work = partial(load_hooks, self.found.folder, package)
        try:
            self._hooks = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except BadPlugin as error:
            self.error = str(error)
            log.warning("plugin '%s' cannot be used: %s", self.plugin.name, error, exc_info=error.__cause__)
        else:
            weakref.finalize(self, forget, package).atexit = False
        self._loaded.set()

    def listed(self, hides: Sequence[Path]) -> Listed:
        hooks = self._hooks
        return Listed(
            name=self.plugin.name,
            description=self.found.manifest.description,
            end_points=self.found.manifest.end_points,
            state=self.state,
            error=self.error,
            warnings=self.found.warnings,
            hooks=tuple(n for n in ("on_request", "on_response", "on_stream") if hooks and getattr(hooks, n)),
            folder=str(self.found.folder),
            hides=tuple(str(path) for path in hides),
        )


class Plugins:
    """Owns the loaded plugins. Made by `open_plugins`; questions are answered from the last look at the folders."""

    def __init__(self, load: Callable[[Entry], None], data: Path) -> None:
        self.folders: tuple[Path, ...] = ()
        self._load = load
        self._data = data
        self._entries: dict[str, Entry] = {}
        self._commands: dict[Family, Commands] = {}
        self._scan = Scan()
        self._looking = trio.Lock()

    def commands(self, family: Family) -> Commands | None:
        """Those that requests of this kind may name; None where there are none."""
        return self._commands.get(family)

    def entry(self, name: str) -> Entry:
        return self._entries[name]

    def listed(self) -> list[Listed]:
        return [entry.listed(self._scan.hidden.get(name, ())) for name, entry in self._entries.items()]

    @property
    def problems(self) -> tuple[str, ...]:
        return self._scan.problems

    async def look(self) -> None:
        """See what is in the folders now. What has not changed stays loaded; what is new is loaded from here on."""
        async with self._looking:
            found = await trio.to_thread.run_sync(scan, self.folders, abandon_on_cancel=True)
            before, self._entries = self._entries, {}
            for each in found.found:
                old = before.get(each.name)
                if old is not None and old.found == each and old.error is None:
                    self._entries[each.name] = old
                    continue
                self._entries[each.name] = entry = Entry(each, self._data)
                for line in (each.error, *each.warnings):
                    if line:
                        log.warning("plugin '%s': %s", each.name, line)
                self._load(entry)
            if found.problems != self._scan.problems:
                for problem in found.problems:
                    log.warning("%s", problem)
            self._scan = found
            self._commands = _commands(self._entries)

    async def wait_loaded(self) -> None:
        """Until every plugin is loaded, or cannot be."""
        for entry in list(self._entries.values()):
            await entry.wait_loaded()

    async def watch(self) -> None:
        """Look again whenever files of plugins have changed; never returns."""
        while True:
            await trio.sleep(WATCH_EVERY)
            if (now := await self._files()) == self._scan.files():
                continue
            await trio.sleep(SETTLED)
            if await self._files() == now:
                await self.look()

    async def _files(self) -> Files:
        found = await trio.to_thread.run_sync(scan, self.folders, abandon_on_cancel=True)
        return found.files()


def _commands(entries: Mapping[str, Entry]) -> dict[Family, Commands]:
    """One that cannot be used is a command, too: who names it learns why. One that is switched off is none."""
    usable = [entry for entry in entries.values() if entry.found.manifest.enabled]
    names = {f: [entry.plugin.name for entry in usable if f in entry.found.manifest.families] for f in Family}
    return {family: Commands(family, of) for family, of in names.items() if of}


@asynccontextmanager
async def open_plugins(folders: Sequence[Path], data: Path, *, watch: bool = False) -> AsyncGenerator[Plugins]:
    """Find the plugins, and load them in the background; who asks for one waits until it is loaded.

    With ``watch`` they are looked for again when their files change.
    """
    async with trio.open_nursery() as nursery:
        plugins = Plugins(lambda entry: nursery.start_soon(entry.load), data)
        plugins.folders = tuple(folders)
        looked = trio.Event()

        async def look() -> None:
            await plugins.look()
            looked.set()
            if watch:
                await plugins.watch()

        nursery.start_soon(look)
        with trio.move_on_after(FIRST_LOOK):
            await looked.wait()
        yield plugins
        nursery.cancel_scope.cancel()
