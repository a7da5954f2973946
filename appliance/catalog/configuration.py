"""The configuration in force: read from its files at the start, and again when it is asked for or they change.

`Files` reads them. `Reloads` are all the parts that can be read again while the program runs: the configuration, and
presets. Either may be missing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.core.config.nodes import NO_PORTS, Loaded, Problem, SourceFile
from appliance.core.config.types import Config
from appliance.core.records.history import Happening, Tell, Trigger, told_to_nobody
from appliance.errors import ApplianceError, Conflict, InvalidConfig, UsageError
from appliance.trio_parts import persist, watch

ENDINGS = (".yml", ".yaml")
LARGEST = 16 << 20
"""Bytes of one file; a configuration of a thousand models is about one MiB."""
log = logging.getLogger(__name__)


def read_sources(config: Path | None, config_dir: Path | None) -> list[SourceFile]:
    """``config`` first, then the folder's .yml and .yaml by name, as they are merged. Raises UsageError."""
    paths = _paths(config, config_dir)
    if config is not None and any(_is_same(path, config) for path in paths[1:]):
        raise UsageError(f"{config} is in {config_dir}, and would be read twice; leave out --config, or move the file")
    if not paths:
        where = f" in {config_dir}" if config_dir is not None else ""
        advice = f"add one that ends in {' or '.join(ENDINGS)}" if where else "name one with --config FILE"
        raise UsageError(f"there is no configuration file{where}; {advice}")
    return [decoded(path, read_file(path)) for path in paths]


def sources_below(root: Path, config: Path | None) -> tuple[Path | None, Path | None]:
    """Return the file and the folder that `read_sources` takes, as far as they are there: ``config``, else
    ``config.yaml`` below ``root``, and ``conf.d``. Raises UsageError.
    """
    file, folder = root / "config.yaml", root / "conf.d"
    found = config or (file if _is_there(file) else None)
    return found, folder if _is_there(folder) and _children(folder) else None


def config_paths(config: Path | None, config_dir: Path | None) -> list[Path]:
    """The files that `read_sources` would read now, to look for changes. ``config`` need not exist; never raises."""
    try:
        return _paths(config, config_dir)
    except UsageError:
        return _paths(config, None)


def _paths(config: Path | None, config_dir: Path | None) -> list[Path]:
    children = _children(config_dir) if config_dir is not None else []
    return [*([config] if config is not None else []), *children]


def _children(folder: Path) -> list[Path]:
    """The folder's configuration files by name; folders in it are not entered.

    The order is the same on every system: Windows' paths would be compared without their case.
    """
    try:
        found = [path for path in folder.iterdir() if path.name.endswith(ENDINGS) and not path.is_dir()]
        if odd := next((path for path in found if path.exists() and not path.is_file()), None):
            raise UsageError(f"{odd} is not a regular file; take it out of the folder of the configuration")
        return sorted(found, key=lambda path: path.name)
    except NotADirectoryError:
        raise UsageError(f"{folder} is not a folder; name a file with --config") from None
    except FileNotFoundError:
        raise UsageError(f"there is no folder {folder}; check --config-dir") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; let the server's user into {path.parent}") from None
    return True


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False  # a missing file is reported when it is read


def read_file(path: Path) -> bytes:
    """Return a file of the configuration as it is. Raises UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; check the path of the configuration") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; name a file, or use --config-dir") from None
    except OSError as error:
        # Windows refuses to open a folder as a matter of permission.
        if isinstance(error, PermissionError) and path.is_dir():
            raise UsageError(f"{path} is a folder; name a file, or use --config-dir") from None
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise UsageError(f"{path} is larger than {LARGEST >> 20} MiB, which no configuration is; check the path")
    return data


def decoded(path: Path, data: bytes) -> SourceFile:
    """Return the text of a file. Raises UsageError."""
    try:
        return SourceFile(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text; save the file as UTF-8") from None


class _Reading(Struct, frozen=True):
    """One reading, with all inputs that decide its meaning."""

    sources: list[SourceFile]
    environ: Mapping[str, str]
    loaded: Loaded

    def holds(self, sources: list[SourceFile], environ: Mapping[str, str], ports: Mapping[str, int]) -> bool:
        """Return whether reading ``sources`` would give the same: each model keeps the port of that reading."""
        kept = self.loaded.ports.items() <= ports.items()
        return kept and sources == self.sources and environ == self.environ


class Files:
    """A configuration's sources. The last good reading is kept, so that it is not understood again.

    ``config_type`` returns the type that has the keys which the program knows, when it is read first.
    """

    def __init__(
        self,
        *,
        config: Path | None = None,
        config_dir: Path | None = None,
        config_type: Callable[[], type[Config]] = lambda: Config,
    ) -> None:
        self.config_type = config_type
        self.config = config
        self.config_dir = config_dir
        self._last: _Reading | None = None

    @property
    def named(self) -> bool:
        """True if there is a file or a folder to read."""
        return self.config is not None or self.config_dir is not None

    def read(self, ports: Mapping[str, int] = NO_PORTS) -> Loaded:
        """Read and understand the files. ``ports``: what models have now and keep. Raises UsageError."""
        # Reading is thirty modules, which a program without a configuration saves.
        from appliance.core.config.load import load

        sources, environ = read_sources(self.config, self.config_dir), dict(os.environ)
        if self._last is not None and self._last.holds(sources, environ, ports):
            return self._last.loaded
        loaded = load(
            sources, environ, windows=sys.platform == "win32", ports=dict(ports), config_type=self.config_type()
        )
        self._last = _Reading(sources, environ, loaded) if loaded.config is not None else None
        return loaded

    def understand(self, file: str, text: str) -> Loaded:
        """Return the meaning of the files if one of them had another text. Raises UsageError."""
        from appliance.core.config.load import load

        sources = [
            SourceFile(file, text) if source.file == file else source
            for source in read_sources(self.config, self.config_dir)
        ]
        return load(sources, os.environ, windows=sys.platform == "win32", config_type=self.config_type())

    def signature(self) -> tuple[tuple[str, int, int, int], ...] | None:
        """Changes when a file does; None while there is none, as when an editor puts a new one into place."""
        found: list[tuple[str, int, int, int]] = []
        for path in config_paths(self.config, self.config_dir):
            with suppress(OSError):
                status = path.stat()
                found.append((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found) or None


FIXED: tuple[tuple[str, Callable[[Config], object]], ...] = (
    ("store", lambda config: config.store),
    ("metricsMaxInMemory", lambda config: config.metrics_max_in_memory),
    ("performance", lambda config: config.performance),
    ("ollamaPort", lambda config: config.ollama_port),
    ("keepContext", lambda config: config.keep_context),
    ("models", lambda config: bool(config.models)),
    ("autoDownload", lambda config: bool(config.models) and config.auto_download in ("allow", "ask")),
    ("tools", lambda config: config.tools),
    ("mcp_servers", lambda config: config.mcp_servers),
)
"""The settings of the program's start. Without models, those on this machine's disk are served instead."""


class Reloaded(Struct, frozen=True, kw_only=True):
    """The outcome of a reload. ``changed`` are the models whose processes are replaced, or end."""

    warnings: tuple[Problem, ...]
    changed: tuple[str, ...]


Follower = Callable[[Config], Iterable[str]]
"""Puts another configuration into force; the result are the ids of models whose processes are replaced for it."""


class ConfigInForce:
    """Owns the configuration in force, and those who follow it, in the order in which they have come.

    ``ports`` are what its models were given. A model keeps its port until ``startPort`` changes, also while it is not
    in the files: others then never listen where its last process may still do.
    """

    def __init__(
        self,
        files: Files,
        config: Config,
        ports: Mapping[str, int],
        followers: Sequence[Follower] = (),
        tell: Tell = told_to_nobody,
    ) -> None:
        self.current = config
        self._tell = tell
        self._followers = followers
        self._files = files
        self._first = config
        self._ports = dict(ports)
        self._reading: trio.Event | None = None

    def paths(self) -> tuple[str, ...]:
        """The files, as they are now; blocks."""
        return tuple(map(str, config_paths(self._files.config, self._files.config_dir)))

    async def check(self) -> tuple[Problem, ...]:
        """Return the problems that a reload would find in the files now; nothing follows them. Raises UsageError."""
        loaded = await trio.to_thread.run_sync(self._files.read, self._ports)
        return loaded.problems if loaded.config is None else (*loaded.problems, *self._unfollowed(loaded.config))

    async def reload(self, trigger: Trigger = "asked") -> Reloaded:
        """Read the files again and follow them. An error is also logged, and changes nothing.

        Raises InvalidConfig, UsageError for files that cannot be read, and Conflict while another reload is under way.
        """
        if self._reading is not None:
            raise Conflict("the configuration is being read at this moment; ask again when that is done")
        self._reading = trio.Event()
        try:
            return await self._reload(trigger)
        except ApplianceError as error:
            _log_error(error, "the configuration was not read again, the old one stays")
            self._tell(_not_read("configuration", trigger, error))
            raise
        finally:
            self._reading.set()
            self._reading = None

    async def wait_read(self) -> None:
        """Wait until no reload is under way that may have read the files too early."""
        while self._reading is not None:
            await self._reading.wait()

    async def reload_quietly(self, trigger: Trigger = "file") -> None:
        """The same where nobody waits for an answer, after any other reload."""
        await self.wait_read()
        with suppress(ApplianceError):
            await self.reload(trigger)

    async def watch(self, reload: Callable[[], Awaitable[None]] | None = None) -> None:
        """Reload, or more, whenever the files have changed, also since they were read first; never returns."""
        await watch(partial(trio.to_thread.run_sync, self._files.signature), reload or self.reload_quietly)

    async def _reload(self, trigger: Trigger) -> Reloaded:
        loaded = await trio.to_thread.run_sync(self._files.read, self._ports)
        config = loaded.require()
        if config.start_port != self.current.start_port:  # somebody wants other ports
            loaded = await trio.to_thread.run_sync(self._files.read)
            config = loaded.require()
        warnings = (*loaded.warnings, *self._unfollowed(config))
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
        self._tell(Happening(kind="reload", what="configuration", reason=trigger, changed=tuple(changed)))
        for warning in warnings:
            log.warning("%s", warning)
        return Reloaded(warnings=warnings, changed=tuple(changed))

    def _unfollowed(self, config: Config) -> Iterable[Problem]:
        message = "cannot change while the program runs; restart it for this to apply"
        fixed = (path for path, of in FIXED if of(self._first) != of(config))
        return [Problem(message=message, path=path, level="warning") for path in fixed]


def _same(one: Config, other: Config) -> bool:
    """The order of keys counts, too: that of a matrix decides between sets that are equally good."""
    return one is other or msgspec.json.encode(one) == msgspec.json.encode(other)


def _not_read(what: str, trigger: Trigger, error: ApplianceError) -> Happening:
    mistakes = error.problems if isinstance(error, InvalidConfig) else (error,)
    return Happening(kind="reload", what=what, reason=trigger, error="; ".join(str(one) for one in mistakes))


def _log_error(error: ApplianceError, outcome: str) -> None:
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
        self,
        configuration: ConfigInForce | None,
        catalog: Catalog,
        follow: Follow,
        beside: Beside | None = None,
        tell: Tell = told_to_nobody,
    ) -> None:
        self._tell = tell
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
        """Read everything again, the folders with models too. Raises InvalidConfig, UsageError and Conflict."""
        done = [await self._configuration.reload()] if self._configuration is not None else []
        if self.presets:
            done.append(await self.reload_presets())
        warnings = [warning for one in done for warning in one.warnings] + await self._look_beside()
        return Reloaded(warnings=tuple(warnings), changed=tuple(dict.fromkeys(m for one in done for m in one.changed)))

    async def reload_presets(self, trigger: Trigger = "asked") -> Reloaded:
        """Read the presets again; unchanged models' processes go on. A mistake is also logged, and changes nothing."""
        try:
            snapshot = await trio.to_thread.run_sync(self._catalog.scan)
        except ApplianceError as error:
            _log_error(error, "the presets were not read again, the old ones stay")
            self._tell(_not_read("presets", trigger, error))
            raise
        changed = tuple(self._follow(snapshot))
        what = "the presets were read" if self.presets else "models were looked for"
        log.info("%s again; processes out of date: %s", what, ", ".join(changed) or "none")
        if self.presets:
            self._tell(Happening(kind="reload", what="presets", reason=trigger, changed=changed))
        for warning in self._catalog.preset_notes:
            log.warning("%s", warning)
        return Reloaded(warnings=tuple(self._catalog.preset_notes), changed=changed)

    async def reload_quietly(self) -> None:
        """The same for a signal (SIGHUP), where nobody waits for an answer."""
        if self._configuration is not None:
            await self._configuration.reload_quietly("signal")
        await self._reload_presets_quietly("signal")
        await self._look_beside()

    async def watch(self) -> None:
        """Reload whenever a file has changed; never returns."""
        async with trio.open_nursery() as nursery:
            if self._configuration is not None:
                following = partial(self._configuration.watch, self._reload_configuration_quietly)
                nursery.start_soon(persist, "watching the configuration", following)
            if (presets := self._catalog.sources.presets) is not None:
                look = partial(trio.to_thread.run_sync, presets.signature)
                following = partial(watch, look, self._reload_presets_quietly)
                nursery.start_soon(persist, "watching the presets", following)

    async def _reload_configuration_quietly(self) -> None:
        if self._configuration is not None:
            await self._configuration.reload_quietly()
        await self._look_beside()

    async def _look_beside(self) -> list[Problem]:
        return [*await self._beside()] if self._beside is not None else []

    async def _reload_presets_quietly(self, trigger: Trigger = "file") -> None:
        with suppress(ApplianceError):
            if self.presets:
                await self.reload_presets(trigger)
