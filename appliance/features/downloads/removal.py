"""The removal of models: planned first, so that everybody can see what goes and what that frees, and then carried out.

Models are removed from the hub cache and the models folder, never from another program's store. In the cache a model is
its names in the snapshots; a blob goes when no name leads to it any more. A projector goes with the last model beside
it. Links are removed, never what they lead to outside the cache. Everything here waits for the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from appliance.catalog.found import LISTING, join_inside, list_folder, listed_models, model_files
from appliance.catalog.supply import RemovedModel
from appliance.core.models.file_names import first_part, model_stem
from appliance.core.models.model import Model
from appliance.core.models.names import folder_of, is_companion, model_name, shard_of, stem_of
from appliance.errors import Forbidden
from appliance.features.downloads.plan import begun_in, model_of_part, repos_in
from appliance.store.model_files import freed_by, remove_empty, unlink
from appliance.store.partial_file import JOURNAL, PART

MAX_DEPTH = 5


class Removal(Struct, frozen=True, kw_only=True):
    """Everything that goes with one model."""

    model: str
    names: tuple[Path, ...] = ()  # its files, by the names that they have for people
    contents: tuple[Path, ...] = ()  # contents in the cache that no other name leads to, and parts of unfinished files
    root: Path  # folders that become empty go too, as far as they are below this one
    repo: Path | None = None  # the repository's folder in the cache

    def frees(self) -> int:
        """Return the bytes that the disk gets back. Raises OSError."""
        return freed_by((*self.names, *self.contents))

    def carry_out(self) -> RemovedModel:
        """Remove it. Raises OSError."""
        size = self.frees()
        for path in (*self.names, *self.contents):
            unlink(path)
        for name in self.names:
            remove_empty(name.parent, self.root)
        if self.repo is not None:
            for part in ("refs", "blobs", "snapshots"):
                remove_empty(self.repo / part, self.repo.parent)
        return RemovedModel(model=self.model, paths=tuple(map(str, self.names)), size=size)


def plan_removal(model: Model, cache: Path | None, models_dir: Path | None, kept: Collection[str] = ()) -> Removal:
    """Return what goes with a model. ``kept``: hashes of files that other downloads need.

    Raises Forbidden for a model from anywhere else, OSError.
    """
    path = Path(model.path)
    if model.source == "cache" and cache is not None and model.hf_repo and cache in path.parents:
        return _cached(model.id, join_inside(cache, folder_of(model.hf_repo)), path, kept)
    if model.source == "models_dir" and models_dir is not None and models_dir in path.parents:
        return _in_folder(model, path, models_dir)
    where = {
        "config": "it is in the configuration; take it out there",
        "path": f"it was named on the command line; delete {model.path} yourself",
        "starter": "it is part of the program; --no-starter leaves it out",
    }.get(model.source, "it is in a folder that belongs to another program")
    raise Forbidden(f"'{model.id}' cannot be removed: {where}")


def plan_discard(model_id: str, repo: Path, blobs: Sequence[Path], kept: Collection[str] = ()) -> Removal:
    """Return what goes with a download that has ended unfinished: the parts of its files, and files without a name."""
    blobs = [blob for blob in blobs if blob.name not in kept]
    named = {_blob_of(entry, repo) for entry in _files_below(repo / "snapshots")}
    whole = [blob for blob in blobs if blob.parent == repo / "blobs" and blob not in named]
    gone = [path for path in (*whole, *_parts(blobs)) if path.is_file()]
    return Removal(model=model_id, contents=_with_branches(repo, gone), root=repo, repo=repo)


def plan_leftover(name: str, cache: Path, kept: Collection[str] = ()) -> Removal | None:
    """Return what goes with an unfinished download of an earlier run, by its model's name. None: there is none."""
    for repo in repos_in(cache):
        listed = listed_models(repo)
        parts = [blob for blob, head in begun_in(repo) if model_of_part(head, listed) == name]
        if parts and (removal := _left_over(name, repo, parts, kept)).contents:
            return removal
    return None


def _left_over(name: str, repo: Path, parts: Sequence[Path], kept: Collection[str]) -> Removal:
    """The repository goes as a whole with its last model or part of one: nobody could name what else is in it."""
    begun = [blob for blob, _ in begun_in(repo)]
    if set(begun) <= set(parts) and not any(_files_below(repo / "snapshots")):
        parts = [repo / "blobs" / file for file in list_folder(repo / "blobs")[0] if not file.endswith((PART, JOURNAL))]
        parts = [*parts, *begun]
    return plan_discard(name, repo, parts, kept)


def _cached(model_id: str, folder: Path, path: Path, kept: Collection[str]) -> Removal:
    entries = list(_files_below(folder / "snapshots"))
    first = _in_repo(path, folder)
    gone = [entry for entry in entries if first_part(_in_repo(entry, folder)) == first]
    if not any(model_stem(entry.name) for entry in entries if entry not in gone):
        gone = [entry for entry in entries if stem_of(entry.name) is not None]
    left = [entry for entry in entries if entry not in set(gone)]
    blobs = {blob for entry in gone if (blob := _blob_of(entry, folder))} - {_blob_of(entry, folder) for entry in left}
    begun = [blob for blob, head in begun_in(folder) if first_part(head.path) == first]
    contents = [
        path
        for path in (*sorted(blob for blob in blobs if blob), *_parts(begun))
        if path.is_file() and path.name.partition(".")[0] not in kept
    ]
    everything = _with_branches(folder, [*gone, *contents])
    return Removal(model=model_id, names=tuple(gone), contents=everything[len(gone) :], root=folder, repo=folder)


def _in_folder(model: Model, path: Path, models_dir: Path) -> Removal:
    """Return ``X.gguf`` with its other shards, or the files of ``D/``'s model."""
    shard = shard_of(stem_of(path.name) or "")
    parts = [path.with_name(shard.name(number)) for number in range(1, shard.total + 1)] if shard else [path]
    others = [Path(found) for found in (model.mmproj, model.draft) if found]
    if path.parent != models_dir and _other_models(path.parent, model_name(stem_of(path.name) or "")):
        others = []
    gone = [found for found in (*parts, *others) if found.is_symlink() or found.exists()]
    return Removal(model=model.id, names=tuple(gone), root=models_dir)


def _other_models(folder: Path, stem: str) -> bool:
    """Return True if companions are still needed by another model."""
    found = model_files(list_folder(folder)[0])
    return any(model.stem != stem and not is_companion(model.stem, anywhere=False) for model in found)


def _parts(blobs: Sequence[Path]) -> list[Path]:
    return [blob.with_name(blob.name + suffix) for blob in blobs for suffix in (PART, JOURNAL)]


def _in_repo(entry: Path, folder: Path) -> str:
    """Return the path of a name in its snapshot."""
    return "/".join(entry.relative_to(folder / "snapshots").parts[1:])


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


def _with_branches(repo: Path, gone: Sequence[Path]) -> tuple[Path, ...]:
    """Return what goes, and if nothing else is left of the repository, also its branch names."""
    left = {*_files_below(repo / "snapshots"), *_files_below(repo / "blobs")} - set(gone)
    return (*gone, *((*_files_below(repo / "refs"), repo / LISTING) if not left else ()))
