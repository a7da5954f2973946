"""The plugins on disk, as far as they are known without running them, and their problems."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct

from appliance.core.config.additions import PluginConfig
from appliance.core.config.nodes import Problem
from appliance.features.plugins.core.settings import Value, merged
from appliance.features.plugins.core.slash import NAME
from appliance.plugins.folders import AGENT, CONFIG, PluginSelection, places_of, unknown_plugins
from appliance.plugins.manifest import LARGEST, BadManifest, ParsedManifest, PluginManifest, read_manifest

DATA = "plugins"  # the folder below the program's data in which each plugin has a folder for its own
MAX_FILES = 1000  # number of files of one plugin that are watched for changes
Signature = tuple[tuple[str, int, int], ...]
Files = dict[str, Signature]


class FoundPlugin(Struct, frozen=True, kw_only=True):
    """One folder of a plugin. ``error`` is None if it can be loaded, as far as known without running it."""

    name: str
    folder: Path
    manifest: PluginManifest = PluginManifest()  # with the configuration's values over it
    values: dict[str, Value] = {}  # those of the manifest by dotted key, and the source of each
    given: PluginConfig = PluginConfig()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    signature: Signature = ()  # it changes when a file changes that decides what the plugin is


class Scan(Struct, frozen=True, kw_only=True):
    """The content of the folders. ``hidden``: name to the folders whose plugin a later one overrides."""

    found: tuple[FoundPlugin, ...] = ()
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: tuple[str, ...] = ()  # folders that cannot be read
    unknown: tuple[Problem, ...] = ()  # plugins that the configuration names and that do not exist

    def files(self) -> Files:
        """Return a value that changes whenever anything here does."""
        return {str(each.folder): each.signature for each in self.found}


def scan(choice: PluginSelection) -> Scan:
    """Look into the folders; later ones override earlier ones. Never raises for their content."""
    places, problems = places_of(choice.folders)
    return Scan(
        found=tuple(_read(places[name][-1], choice.given.get(name, PluginConfig())) for name in sorted(places)),
        hidden={name: paths[:-1] for name, paths in places.items() if len(paths) > 1},
        problems=tuple(problems),
        unknown=tuple(unknown_plugins(choice.given, places)),
    )


def _read(folder: Path, given: PluginConfig) -> FoundPlugin:
    """A plugin that the configuration switches off has no error, whatever its files say."""
    error = None
    try:
        told = _manifest(folder)
    except BadManifest as bad:
        told, error = ParsedManifest(manifest=PluginManifest()), str(bad)
    except OSError as failed:
        told, error = ParsedManifest(manifest=PluginManifest()), f"{failed.filename}: {failed.strerror}"
    manifest, values = merged(told.manifest, told.keys, given)
    if error is None and manifest.enabled and not (folder / AGENT).is_file():
        error = f"{AGENT} is missing in {folder}"
    return FoundPlugin(
        name=folder.name,
        folder=folder,
        manifest=manifest,
        values=values,
        given=given,
        warnings=told.warnings,
        error=error if manifest.enabled else None,
        signature=_signature(folder),
    )


def _manifest(folder: Path) -> ParsedManifest:
    """Read the manifest. Raises BadManifest and OSError."""
    if not NAME.fullmatch(folder.name):
        raise BadManifest("its folder's name cannot be a command; use letters, digits, dots, '-' and '_', at most 64")
    if not (folder / CONFIG).is_file():
        raise BadManifest(f"{CONFIG} is missing in {folder}")
    with (folder / CONFIG).open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise BadManifest(f"config.json is larger than {LARGEST >> 10} KiB")
    return read_manifest(data)


def _signature(folder: Path) -> Signature:
    found: list[tuple[str, int, int]] = []
    with suppress(OSError):  # it vanishes at this moment
        for path in islice(folder.rglob("*"), MAX_FILES):
            if path.suffix == ".py" or path.name == CONFIG:
                with suppress(OSError):
                    status = path.stat()
                    found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))
