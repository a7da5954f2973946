"""Which plugins there are on disk: folders with ``agent.py`` and ``config.json``, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from platformdirs import user_data_path

from appliance.core.config.nodes import Problem
from appliance.core.config.types import PluginConfig
from appliance.core.slash import NAME
from appliance.plugins.configured import Choice, Value, merged, unknown_plugins
from appliance.plugins.manifest import LARGEST, BadManifest, Manifest, Told, read_manifest

BUNDLED = Path(__file__).parent / "bundled"
"""Where the wheel and the frozen program have the plugins that are shipped along."""
CHECKOUT = Path(__file__).parents[2] / "plugins"
AGENT, CONFIG = "agent.py", "config.json"
MAX_FILES = 1000
"""Files of one plugin that are looked at for changes."""

Signature = tuple[tuple[str, int, int], ...]
Files = dict[str, Signature]


def bundled_folder() -> Path:
    """The folder of the plugins that are shipped with the program: beside the code, or that of the checkout."""
    return BUNDLED if BUNDLED.is_dir() else CHECKOUT


def plugin_folders(*more: Path) -> tuple[Path, ...]:
    """Where plugins are looked for: what is shipped along first, so that everything else wins over it."""
    return (bundled_folder(), *dict.fromkeys(path.absolute() for path in more))


def default_data() -> Path:
    """The folder that has a folder for what each plugin keeps."""
    return user_data_path("llama-appliance", appauthor=False) / "plugins"


class Found(Struct, frozen=True, kw_only=True):
    """One folder of a plugin. ``error`` is None where it can be loaded, as far as one sees without running it."""

    name: str
    folder: Path
    manifest: Manifest = Manifest()
    """With what the configuration says put over it."""
    values: dict[str, Value] = {}
    """Of the manifest, by dotted key, and where each comes from."""
    given: PluginConfig = PluginConfig()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    signature: Signature = ()
    """Changes when a file does that decides what the plugin is."""


class Scan(Struct, frozen=True, kw_only=True):
    """What the folders have. ``hidden``: name to the folders whose plugin of that name gives way to a later one."""

    found: tuple[Found, ...] = ()
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: tuple[str, ...] = ()
    """Folders that cannot be read."""
    unknown: tuple[Problem, ...] = ()
    """Plugins that the configuration speaks of, and that are not there."""

    def files(self) -> Files:
        """What to compare to see whether anything has changed."""
        return {str(each.folder): each.signature for each in self.found}


def scan(choice: Choice) -> Scan:
    """Look into the folders; later ones win. Never raises for what is there, or is not."""
    found: dict[str, Found] = {}
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: list[str] = []
    for folder in choice.folders:
        try:
            inside = sorted(path for path in folder.iterdir() if _is_plugin(path))
        except OSError as error:
            why = "there is no such folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
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


def _read(folder: Path, given: PluginConfig) -> Found:
    """One that the configuration switches off is no error, whatever its files say."""
    error = None
    try:
        told = _manifest(folder)
    except BadManifest as bad:
        told, error = Told(manifest=Manifest()), str(bad)
    except OSError as failed:
        told, error = Told(manifest=Manifest()), f"{failed.filename}: {failed.strerror}"
    manifest, values = merged(told.manifest, told.keys, given)
    if error is None and manifest.enabled and not (folder / AGENT).is_file():
        error = f"{AGENT} is missing in {folder}"
    return Found(
        name=folder.name,
        folder=folder,
        manifest=manifest,
        values=values,
        given=given,
        warnings=told.warnings,
        error=error if manifest.enabled else None,
        signature=_signature(folder),
    )


def _manifest(folder: Path) -> Told:
    """Raises BadManifest and OSError."""
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
