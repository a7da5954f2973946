"""Which plugins there are on disk: folders with ``agent.py`` and ``config.json``, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from platformdirs import user_data_path

from appliance.core.slash import NAME
from appliance.plugins.manifest import LARGEST, BadManifest, Manifest, read_manifest

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

    def files(self) -> Files:
        """What to compare to see whether anything has changed."""
        return {str(each.folder): each.signature for each in self.found}


def scan(folders: Sequence[Path]) -> Scan:
    """Look into the folders; later ones win. Never raises for what is there, or is not."""
    found: dict[str, Found] = {}
    hidden: dict[str, tuple[Path, ...]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            inside = sorted(path for path in folder.iterdir() if _is_plugin(path))
        except OSError as error:
            why = "there is no such folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            problems.append(f"plugins in {folder} cannot be used: {why}")
            continue
        for path in inside:
            if (before := found.pop(path.name, None)) is not None:
                hidden[path.name] = (*hidden.get(path.name, ()), before.folder)
            found[path.name] = _read(path)
    ordered = tuple(found[name] for name in sorted(found))
    return Scan(found=ordered, hidden=hidden, problems=tuple(problems))


def _is_plugin(path: Path) -> bool:
    return path.name[0] not in "._" and ((path / AGENT).is_file() or (path / CONFIG).is_file())


def _read(folder: Path) -> Found:
    name = folder.name
    signature = _signature(folder)
    try:
        if not NAME.fullmatch(name):
            raise BadManifest(
                "its folder's name cannot be a command; use letters, digits, dots, '-' and '_', at most 64"
            )
        if not (folder / CONFIG).is_file():
            raise BadManifest(f"{CONFIG} is missing in {folder}")
        with (folder / CONFIG).open("rb") as opened:
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadManifest(f"config.json is larger than {LARGEST >> 10} KiB")
        manifest, warnings = read_manifest(data)
        if manifest.enabled and not (folder / AGENT).is_file():
            raise BadManifest(f"{AGENT} is missing in {folder}")
    except BadManifest as error:
        return Found(name=name, folder=folder, error=str(error), signature=signature)
    except OSError as error:
        return Found(name=name, folder=folder, error=f"{error.filename}: {error.strerror}", signature=signature)
    return Found(name=name, folder=folder, manifest=manifest, warnings=warnings, signature=signature)


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
