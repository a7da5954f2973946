"""The plugins on disk: folders with ``agent.py`` and ``config.json``, and their problems.

``agent.py`` is imported under a name of its own, from source, and without a trace in its folder.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from msgspec import Struct

from appliance.core.config.additions import PluginConfig
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.runs.slash import NAME
from appliance.plugins.manifest import (
    LARGEST,
    BadManifest,
    ParsedManifest,
    PluginManifest,
    PluginSelection,
    Value,
    merged,
    read_manifest,
    unknown_plugins,
)

BUNDLED = Path(__file__).parent / "bundled"
"""The place of the bundled plugins in the wheel and the frozen program."""
CHECKOUT = Path(__file__).parents[2] / "plugins"
AGENT, CONFIG = "agent.py", "config.json"
DATA = "plugins"
"""The folder below the program's data in which each plugin has a folder for its own."""
MAX_FILES = 1000
"""Number of files of one plugin that are watched for changes."""
STARTED_WITHOUT = "plugins are off: the program was started without them, by --no-plugins or as llama-server"
CONFIGURED_WITHOUT = (
    "plugins are off: a configuration that does not mention plugins switches them off, as in llama-swap; "
    "put 'plugins: {}' into it, or start the program with --plugins DIR"
)

Signature = tuple[tuple[str, int, int], ...]
Files = dict[str, Signature]
PREFIX = "appliance_plugin_"
"""Prefix of the package that a plugin's folder becomes; no two loads share a name, so old and new never mix."""
HOOKS = ("on_request", "on_response", "on_stream")
SETTINGS = "Settings"
"""The dataclass in agent.py that describes the settings, if there is one."""


def bundled_folder() -> Path:
    """Return the folder of the plugins that ship with the program: beside the code, or that of the checkout."""
    return BUNDLED if BUNDLED.is_dir() else CHECKOUT


def plugin_folders(*more: Path) -> tuple[Path, ...]:
    """Return where to look for plugins: the bundled ones first, so that all others override them."""
    return (bundled_folder(), *dict.fromkeys(path.absolute() for path in more))


def choice_of(config: Config | None, folders: Sequence[Path] | None) -> PluginSelection:
    """Which plugins there are: those in the program's own folder, those of the configuration, those in ``folders``.

    There are none without ``folders`` (None), and none where a configuration says nothing of them and no folder is
    named: a stand-in for another program takes no text for a command.
    """
    if folders is None:
        return PluginSelection(off=STARTED_WITHOUT)
    if config is None:
        return PluginSelection(folders=plugin_folders(*folders))
    told = config.plugins_dir
    configured = [Path(folder) for folder in ([told] if isinstance(told, str) else told) if folder]
    if not (configured or folders or config.plugins is not None):
        return PluginSelection(off=CONFIGURED_WITHOUT)
    return PluginSelection(folders=plugin_folders(*configured, *folders), given=config.plugins or {})


class FoundPlugin(Struct, frozen=True, kw_only=True):
    """One folder of a plugin. ``error`` is None if it can be loaded, as far as known without running it."""

    name: str
    folder: Path
    manifest: PluginManifest = PluginManifest()
    """With the configuration's values over it."""
    values: dict[str, Value] = {}
    """The manifest's values by dotted key, and the source of each."""
    given: PluginConfig = PluginConfig()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    signature: Signature = ()
    """Changes when a file changes that decides what the plugin is."""


class Scan(Struct, frozen=True, kw_only=True):
    """The content of the folders. ``hidden``: name to the folders whose plugin a later one overrides."""

    found: tuple[FoundPlugin, ...] = ()
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: tuple[str, ...] = ()
    """Folders that cannot be read."""
    unknown: tuple[Problem, ...] = ()
    """Plugins that the configuration names and that do not exist."""

    def files(self) -> Files:
        """Return a value that changes whenever anything here does."""
        return {str(each.folder): each.signature for each in self.found}


def scan(choice: PluginSelection) -> Scan:
    """Look into the folders; later ones override earlier ones. Never raises for their content."""
    found: dict[str, FoundPlugin] = {}
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: list[str] = []
    for folder in choice.folders:
        try:
            inside = sorted(path for path in folder.iterdir() if _is_plugin(path))
        except OSError as error:
            why = "no such folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            problems.append(f"plugins in {folder} cannot be used: {why}")
            continue
        for path in inside:
            if (before := found.pop(path.name, None)) is not None:
                hidden[path.name] = (*hidden.get(path.name, ()), before.folder)
            found[path.name] = _read(path, choice.given.get(path.name, PluginConfig()))
    ordered = tuple(found[name] for name in sorted(found))
    unknown = unknown_plugins(choice.given, found) if choice.off is None else ()
    return Scan(found=ordered, hidden=hidden, problems=tuple(problems), unknown=tuple(unknown))


def _is_plugin(path: Path) -> bool:
    return path.name[0] not in "._" and ((path / AGENT).is_file() or (path / CONFIG).is_file())


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
    try:
        return tuple(sorted(_facts(folder)))
    except OSError:  # it vanishes at this moment
        return ()


def _facts(folder: Path) -> Iterator[tuple[str, int, int]]:
    for number, path in enumerate(folder.rglob("*")):
        if number == MAX_FILES:
            return
        if path.suffix != ".py" and path.name != CONFIG:
            continue
        try:
            status = path.stat()
        except OSError:
            continue
        yield str(path), status.st_mtime_ns, status.st_size


class BadPlugin(Exception):
    """One line: the problem with agent.py."""


class PluginHooks(Struct, frozen=True, kw_only=True):
    """The functions of one load of agent.py. They are checked when they are called."""

    module: str
    on_request: Callable[..., object] | None = None
    on_response: Callable[..., object] | None = None
    on_stream: Callable[..., object] | None = None
    settings: type | None = None
    """The dataclass of its settings."""


class _FromSource(SourceFileLoader):
    """Compiles the current text of the file. It neither reads nor writes bytecode on disk."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder:
    """Finds the modules beside agent.py, and no others."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX) or not path:
            return None
        for folder in path:
            if (spec := FileFinder(folder, (_FromSource, [".py"])).find_spec(fullname)) is not None:
                return spec
        return None


def load_hooks(folder: Path, package: str) -> PluginHooks:
    """Run agent.py, which may import modules beside it (``from . import helper``). Takes as long as the plugin likes.

    ``package`` begins with `PREFIX` and is used once. Raises BadPlugin.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    home = ModuleType(package)
    home.__path__ = [str(folder)]
    home.__spec__ = ModuleSpec(package, None, is_package=True)
    sys.modules[package] = home
    try:
        module = importlib.import_module(f"{package}.agent")
        found = {name: getattr(module, name) for name in HOOKS if hasattr(module, name)}
        _check(found)
        settings: object = getattr(module, SETTINGS, None)
    except BadPlugin:
        forget(package)
        raise
    except (Exception, SystemExit) as error:
        forget(package)
        raise BadPlugin(_place_of(error, folder)) from error
    known = settings if isinstance(settings, type) and dataclasses.is_dataclass(settings) else None
    return PluginHooks(module=package, settings=known, **found)


def forget(package: str) -> None:
    """Release the modules of one load."""
    for name in list(sys.modules):  # a copy: other threads import meanwhile
        if name == package or name.startswith(f"{package}."):
            sys.modules.pop(name, None)


def _check(found: dict[str, object]) -> None:
    if not found:
        raise BadPlugin(f"agent.py has none of the functions {', '.join(HOOKS)}")
    for name, hook in found.items():
        if not callable(hook):
            raise BadPlugin(f"agent.py: {name} is not a function")
        try:
            inspect.signature(hook).bind(None, None)
        except (TypeError, ValueError):
            first = "events" if name == "on_stream" else name.removeprefix("on_")
            raise BadPlugin(f"agent.py: {name} must take two arguments, ({first}, context)") from None
    stream = found.get("on_stream")
    if inspect.iscoroutinefunction(stream) or inspect.isgeneratorfunction(stream):
        raise BadPlugin("agent.py: on_stream must be an asynchronous generator: 'async def' with 'yield' in it")


def _place_of(error: BaseException, folder: Path) -> str:
    """Return the last line of the traceback, and the place in the plugin's own files."""
    last = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{Path(error.filename or 'agent.py').name}:{error.lineno}:{error.offset}: {last}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {last}" if own else f"agent.py: {last}"
