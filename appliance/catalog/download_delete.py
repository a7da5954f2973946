"""Deletes models from the disk: from the hub cache and the models folder, never from another program's store.

In the cache a model is its names in the snapshots; a blob goes when no name leads to it any more. A projector goes with
the last model beside it. Links are removed, never what they lead to outside the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from appliance.catalog.download_plan import begun_in
from appliance.catalog.files import join_inside, list_folder
from appliance.catalog.found import model_files
from appliance.core.models.model import Model
from appliance.core.models.names import folder_of, is_companion, model_name, shard_of, stem_of, tag_of
from appliance.errors import Forbidden
from appliance.store.model_files import remove, remove_empty
from appliance.store.partial_file import discard

MAX_DEPTH = 5


class Removed(Struct, frozen=True, kw_only=True):
    """The removed model. ``size`` is the number of bytes freed."""

    model: str
    paths: tuple[str, ...]
    size: int


def remove_model(model: Model, cache: Path, models_dir: Path | None) -> Removed:
    """Raises Forbidden for a model from anywhere else, OSError."""
    if model.source == "cache" and model.hf_repo and model.tag:
        return _remove_cached(model.id, join_inside(cache, folder_of(model.hf_repo)), model.tag)
    path = Path(model.path)
    if model.source == "models_dir" and models_dir is not None and models_dir in path.parents:
        return _remove_from_folder(model, path, models_dir)
    where = {
        "config": "it is in the configuration; take it out there",
        "path": f"it was named on the command line; delete {model.path} yourself",
        "starter": "it is part of the program; --no-starter leaves it out",
    }.get(model.source, "it is in a folder that belongs to another program")
    raise Forbidden(f"'{model.id}' cannot be removed: {where}")


def discard_begun(folder: Path, blobs: Sequence[Path]) -> None:
    """Remove the unfinished parts of a repository's files, and its folders if nothing else is left."""
    for blob in blobs:
        discard(blob)
    _remove_empty_folders(folder)


def _remove_cached(model_id: str, folder: Path, tag: str) -> Removed:
    snapshots = folder / "snapshots"
    entries = list(_files_below(snapshots))
    gone = [entry for entry in entries if _belongs(entry.name, tag)]
    left = [entry for entry in entries if entry not in set(gone)]
    if not any(_is_model(entry.name) for entry in left):
        gone += [entry for entry in left if _is_companion(entry.name)]
        left = [entry for entry in left if not _is_companion(entry.name)]
    blobs = {blob for entry in gone if (blob := _blob_of(entry, folder))} - {_blob_of(entry, folder) for entry in left}
    size = sum(remove(path) for path in (*gone, *sorted(blob for blob in blobs if blob)))
    for blob, head in begun_in(folder):
        if _belongs(head.path.rpartition("/")[2], tag):
            discard(blob)
    for entry in gone:
        remove_empty(entry.parent, folder)
    _remove_empty_folders(folder)
    return Removed(model=model_id, paths=tuple(str(entry) for entry in gone), size=size)


def _remove_from_folder(model: Model, path: Path, models_dir: Path) -> Removed:
    """Return ``X.gguf`` with its other shards, or the files of ``D/``'s model."""
    shard = shard_of(stem_of(path.name) or "")
    parts = [path.with_name(shard.name(number)) for number in range(1, shard.total + 1)] if shard else [path]
    others = [Path(found) for found in (model.mmproj, model.draft) if found]
    if path.parent != models_dir and _other_models(path.parent, model_name(stem_of(path.name) or "")):
        others = []
    gone = [found for found in (*parts, *others) if found.is_symlink() or found.exists()]
    size = sum(remove(found) for found in gone)
    remove_empty(path.parent, models_dir)
    return Removed(model=model.id, paths=tuple(str(found) for found in gone), size=size)


def _other_models(folder: Path, stem: str) -> bool:
    """Return True if companions are still needed by another model."""
    found = model_files(list_folder(folder)[0])
    return any(model.stem != stem and not is_companion(model.stem, anywhere=False) for model in found)


def _belongs(name: str, tag: str) -> bool:
    stem = stem_of(name)
    return stem is not None and _is_model(name) and tag_of(stem) == tag


def _is_model(name: str) -> bool:
    stem = stem_of(name)
    return stem is not None and not is_companion(stem, anywhere=True)


def _is_companion(name: str) -> bool:
    stem = stem_of(name)
    return stem is not None and is_companion(stem, anywhere=True)


def _blob_of(entry: Path, folder: Path) -> Path | None:
    """Return the blob that a name leads to; None for a file of its own, and for a link out of the repository."""
    if not entry.is_symlink():
        return None
    target = Path(entry.parent, entry.readlink())
    blob = folder / "blobs" / target.name
    return blob if target.parent.resolve() == (folder / "blobs").resolve() else None


def _files_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    try:
        files, folders = list_folder(folder)
    except OSError:
        return
    yield from (folder / name for name in files)
    if depth < MAX_DEPTH:
        for name in folders:
            if not (folder / name).is_symlink():
                yield from _files_below(folder / name, depth + 1)


def _remove_empty_folders(folder: Path) -> None:
    """If nothing is left of a repository, also remove its branch names."""
    below: Iterable[Path] = (*_files_below(folder / "snapshots"), *_files_below(folder / "blobs"))
    if next(iter(below), None) is None:
        for name in list(_files_below(folder / "refs")):
            remove(name)
        for part in ("refs", "blobs", "snapshots"):
            remove_empty(folder / part, folder.parent)
