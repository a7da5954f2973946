"""Configuration files on disk: their paths and their text. `core.config.load` understands them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from appliance.core.config.nodes import NO_PORTS, Loaded, Source
from appliance.errors import UsageError

ENDINGS = (".yml", ".yaml")
LARGEST = 16 << 20
"""Bytes of one file; a configuration of a thousand models is about one MiB."""


def read_sources(config: Path | None, config_dir: Path | None) -> list[Source]:
    """The files in the order in which they are merged: ``config`` first, then the folder's own .yml and .yaml by name.

    Raises UsageError naming the file and what to do about it, also when there is no file at all.
    """
    children = _children(config_dir) if config_dir is not None else []
    if config is not None and config_dir is not None:
        _refuse_twice(config, config_dir, children)
    paths = [*([config] if config is not None else []), *children]
    if not paths:
        where = f" in {config_dir}" if config_dir is not None else ""
        advice = (
            f"add one that ends in {' or '.join(ENDINGS)}" if config_dir is not None else "name one with --config FILE"
        )
        raise UsageError(f"there is no configuration file{where}; {advice}")
    return [_read(path) for path in paths]


def config_paths(config: Path | None, config_dir: Path | None) -> list[Path]:
    """The files that `read_sources` would read now, to look for changes. ``config`` need not exist; never raises."""
    try:
        children = _children(config_dir) if config_dir is not None else []
    except UsageError:
        children = []
    return [*([config] if config is not None else []), *children]


def _children(folder: Path) -> list[Path]:
    """The folder's configuration files by name; folders in it are not entered."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and not path.is_dir())
    except NotADirectoryError:
        raise UsageError(f"{folder} is not a folder; name a file with --config") from None
    except FileNotFoundError:
        raise UsageError(f"there is no folder {folder}; check --config-dir") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None


def _refuse_twice(config: Path, folder: Path, children: list[Path]) -> None:
    for child in children:
        try:
            same = child.samefile(config)
        except OSError:
            continue  # a missing file is reported when it is read
        if same:
            raise UsageError(f"{config} is in {folder}, and would be read twice; leave out --config, or move the file")


def _read(path: Path) -> Source:
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
    try:
        return Source(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text; save the file as UTF-8") from None


class _Reading(Struct, frozen=True):
    """One reading, with all inputs that decide its meaning."""

    sources: list[Source]
    environ: Mapping[str, str]
    loaded: Loaded

    def holds(self, sources: list[Source], environ: Mapping[str, str], ports: Mapping[str, int]) -> bool:
        """Return whether reading ``sources`` would give the same: each model keeps the port of that reading."""
        kept = self.loaded.ports.items() <= ports.items()
        return kept and sources == self.sources and environ == self.environ


class Files:
    """The sources of a configuration; at least one of them is given. Read by one thread at a time.

    The last reading without a mistake is kept, so that unchanged files are not understood again.
    """

    def __init__(self, *, config: Path | None = None, config_dir: Path | None = None) -> None:
        self.config = config
        self.config_dir = config_dir
        self._last: _Reading | None = None

    def read(self, ports: Mapping[str, int] = NO_PORTS) -> Loaded:
        """Read and understand the files. ``ports``: what models have now and keep. Raises UsageError."""
        # Reading is thirty modules, which a program without a configuration saves.
        from appliance.core.config.load import load

        sources, environ = read_sources(self.config, self.config_dir), dict(os.environ)
        if self._last is not None and self._last.holds(sources, environ, ports):
            return self._last.loaded
        loaded = load(sources, environ, windows=sys.platform == "win32", ports=dict(ports))
        self._last = _Reading(sources, environ, loaded) if loaded.config is not None else None
        return loaded

    def signature(self) -> tuple[tuple[str, int, int, int], ...]:
        """Changes when a file does; empty while there is none, as when an editor puts a new one into place."""
        found: list[tuple[str, int, int, int]] = []
        try:
            paths = config_paths(self.config, self.config_dir)
        except UsageError:
            return ()
        for path in paths:
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)
