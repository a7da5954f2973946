"""Models that LM Studio has downloaded, used in place.

Layout: ``<publisher>/<repository>/*.gguf``, a projector beside its model. The ids are those that the same repository
has in a Hugging Face cache, ``<publisher>/<repository>:<TAG>``, so that a model in both is listed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from appliance.catalog.files import list_folder, read_start, why
from appliance.catalog.folder import pick_projector
from appliance.catalog.found import Found, model_files
from appliance.core.decoding import decoded
from appliance.core.models.names import is_companion, is_projector, tag_of

HOME_POINTER = ".lmstudio-home-pointer"
"""The file with the place of LM Studio's own folder, if it was moved."""
HOMES = ((".lmstudio",), (".cache", "lm-studio"))
"""Its folder below the user's, today and before 2025."""
MAX_SETTINGS = 1 << 20


class _Settings(Struct, rename="camel"):
    """A part of ``settings.json``: the folder for downloads, if the user has chosen one."""

    downloads_folder: str = ""


def lm_studio_directories(home: Path) -> tuple[Path, ...]:
    """Return folders that may hold models of LM Studio, for the user whose folder is ``home``. Raises nothing."""
    homes = [home.joinpath(*parts) for parts in HOMES]
    if pointed := _text(home / HOME_POINTER).strip():
        homes.insert(0, Path(pointed))
    found: list[Path] = []
    for folder in homes:
        settings = decoded(_Settings, _text(folder / "settings.json"))
        found += [Path(settings.downloads_folder)] if settings is not None and settings.downloads_folder else []
        found.append(folder / "models")
    return tuple(dict.fromkeys(path for path in found if path.is_absolute()))


def scan_lm_studio(root: Path, notes: list[str]) -> Iterator[Found]:
    """Scan a folder. Raises OSError if the folder itself cannot be read; unreadable parts below it are in ``notes``."""
    for publisher in list_folder(root)[1]:
        for repo in _listed(root / publisher, notes)[1]:
            yield from _models(publisher, repo, root / publisher / repo, notes)


def _models(publisher: str, repo: str, folder: Path, notes: list[str]) -> Iterator[Found]:
    everything = model_files(_listed(folder, notes)[0])
    models = [model for model in everything if not is_companion(model.stem, anywhere=True)]
    projector = pick_projector([model.names[0] for model in everything if is_projector(model.stem)])
    tags = Counter(tag_of(model.stem) for model in models)
    for model in models:
        tag = tag_of(model.stem)
        known = tag if tag is not None and tags[tag] == 1 else None
        yield Found(
            id=f"{publisher}/{repo}:{known or model.stem}",
            aliases=(model.stem,),
            source="lm_studio",
            files=model.paths(folder),
            mmproj=str(folder / projector) if projector else None,
            repo=f"{publisher}/{repo}",
            tag=known,
        )


def _listed(folder: Path, notes: list[str]) -> tuple[list[str], list[str]]:
    try:
        return list_folder(folder)
    except OSError as error:
        notes.append(f"the models of LM Studio in {folder} cannot be listed: {why(error)}")
        return [], []


def _text(path: Path) -> str:
    try:
        return read_start(path, MAX_SETTINGS).decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: a NUL in a path that a file named
        return ""
