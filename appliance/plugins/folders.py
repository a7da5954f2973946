"""The folders with plugins, and the names of those in them. Refuses to read what is in a plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from appliance.core.config.additions import PluginConfig
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.near_names import meant_or_all

BUNDLED = Path(__file__).parent / "bundled"
"""The place of the bundled plugins in the wheel and the frozen program."""
CHECKOUT = Path(__file__).parents[2] / "plugins"
AGENT, CONFIG = "agent.py", "config.json"
STARTED_WITHOUT = "plugins are off: the program was started without them, by --no-plugins or as llama-server"
CONFIGURED_WITHOUT = (
    "plugins are off: a configuration that does not mention plugins switches them off, as in llama-swap; "
    "put 'plugins: {}' into it, or start the program with --plugins DIR"
)


class PluginSelection(Struct, frozen=True, kw_only=True):
    """The selection of plugins."""

    folders: tuple[Path, ...] = ()
    given: Mapping[str, PluginConfig] = {}  # the configuration of single plugins, by name
    off: str | None = None  # the reason why there are none at all, and how to switch them on


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


def places_of(folders: Iterable[Path]) -> tuple[dict[str, tuple[Path, ...]], list[str]]:
    """Return where each plugin is, the folder that overrides the others last; and the problems of the folders."""
    places: dict[str, tuple[Path, ...]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            inside = sorted(path for path in folder.iterdir() if _is_plugin(path))
        except OSError as error:
            why = "no such folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            problems.append(f"plugins in {folder} cannot be used: {why}")
            continue
        for path in inside:
            places[path.name] = (*places.pop(path.name, ()), path)
    return places, problems


def _is_plugin(path: Path) -> bool:
    return path.name[0] not in "._" and ((path / AGENT).is_file() or (path / CONFIG).is_file())


def unknown_plugins(given: Mapping[str, PluginConfig], names: Iterable[str]) -> list[Problem]:
    """Return the plugins that the configuration names and no folder contains."""
    known = list(names)
    return [
        Problem(message=f"there is no plugin '{name}'{or_meant(name, known)}", path=f"plugins.{name}", level="warning")
        for name in given
        if name not in known
    ]


def or_meant(name: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name; empty where nothing is known."""
    return meant_or_all(name, known) if known else ""
