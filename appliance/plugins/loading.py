"""The code of one plugin: its ``agent.py``, imported under a name of its own, and without a trace in its folder."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from msgspec import Struct

from appliance.core.bodies.json_text import JSON

PREFIX = "appliance_plugin_"
"""Prefix of the package that a plugin's folder becomes; no two loads share a name, so old and new never mix."""
HOOKS = ("on_request", "on_response", "on_stream")
SETTINGS = "Settings"
"""The dataclass in agent.py that describes the settings, if there is one."""


class BadPlugin(Exception):
    """One line: the problem with agent.py."""


class Plugin(Struct, frozen=True, kw_only=True):
    """The facts about a plugin without running it. ``data``: the folder for its own data, made on first use."""

    name: str
    folder: Path
    data: Path
    settings: Mapping[str, JSON]
    timeout: float
    """Seconds that a hook may take; for a stream, between two events."""


class PluginHooks(Struct, frozen=True, kw_only=True):
    """The functions of one load of agent.py. They are checked when they are called."""

    module: str
    on_request: Callable[..., object] | None = None
    on_response: Callable[..., object] | None = None
    on_stream: Callable[..., object] | None = None
    settings: type | None = None  # the dataclass of its settings


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
    import dataclasses  # a plugin that has settings has imported it

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
