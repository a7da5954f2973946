"""Models in a Hugging Face hub cache, as llama-server's ``-hf`` and ``huggingface-cli`` fill it.

Layout: ``models--<org>--<repo>/refs/main`` holds a commit, ``snapshots/<commit>/`` the files, as links into ``blobs/``
or (on systems without links) as files. The id is ``<org>/<repo>:<TAG>``, the tag being the end of the file's stem.

The layout is huggingface_hub's, and so are the locks. Its own scan is not used: every start of the server scans, and
the library would cost it 70 ms and 11 MB, and 35 ms where this takes 10 (50 repositories of 10 files, measured with
2.4). Its rule for the cache's folder does not know llama-server's ``LLAMA_CACHE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from appliance.catalog.files import UnsafeName, join_inside, list_folder, read_start
from appliance.catalog.found import Found, model_files, pick_projector
from appliance.core.models.download import PRESET_FILE, RemoteFile, Wanted, pick
from appliance.core.models.names import folder_of, is_commit, is_companion, is_projector, repo_of, stem_of, tag_of
from appliance.errors import NotFound

MAX_DEPTH = 4
"""Folders below a snapshot; repositories use one (``Q4_K_M/``, ``MTP/``)."""

MAX_FOLDERS = 1000
"""Number of folders of one snapshot that are read."""


class Cached(Struct, frozen=True, kw_only=True):
    """A model in the cache: its shards in order, and its projector."""

    files: tuple[str, ...]
    mmproj: str | None
    tag: str | None


def cache_directory(environ: Mapping[str, str], home: Path) -> Path:
    """Return the cache's folder, in llama-server's order of variables; an empty variable counts as unset."""
    for variable, below in (
        ("LLAMA_CACHE", ()),
        ("HF_HUB_CACHE", ()),
        ("HUGGINGFACE_HUB_CACHE", ()),
        ("HF_HOME", ("hub",)),
        ("XDG_CACHE_HOME", ("huggingface", "hub")),
    ):
        if value := environ.get(variable):
            return Path(value).joinpath(*below)
    return home / ".cache" / "huggingface" / "hub"


def scan_cache(root: Path) -> Iterator[Found]:
    """Scan the cache. Raises OSError if the cache itself cannot be read; an unusable repository is skipped."""
    for folder in list_folder(root)[1]:
        repo = repo_of(folder)
        snapshot = _snapshot(root / folder) if repo else None
        if repo and snapshot:
            yield from _models(repo, snapshot)


def preset_file(root: Path, repo: str) -> Path | None:
    """Return the presets that a cached repository (``org/repo``) holds instead of a model; None if it holds none."""
    found = files_of(root, repo)
    return found[0] / PRESET_FILE if found is not None and any(file.path == PRESET_FILE for file in found[1]) else None


def files_of(root: Path, repo: str) -> tuple[Path, list[RemoteFile]] | None:
    """Return the snapshot of a cached repository and its complete files; without their hashes."""
    try:
        snapshot = _snapshot(join_inside(root, folder_of(repo)))
    except UnsafeName:
        return None
    if snapshot is None:
        return None
    found = [path for folder, names in _walk(snapshot) for name in names if (path := folder / name).is_file()]
    return snapshot, [RemoteFile(path.relative_to(snapshot).as_posix(), "") for path in found]


def in_cache(root: Path, wanted: Wanted) -> Cached | None:
    """Return the model in the cache that is meant; None unless all of it is here."""
    found = files_of(root, wanted.reference.repo)
    if found is None:
        return None
    snapshot, files = found
    try:
        choice = pick(wanted, files)
    except NotFound:
        return None
    return Cached(
        files=tuple(str(snapshot / file.path) for file in choice.model),
        mmproj=str(snapshot / choice.projector.path) if choice.projector is not None else None,
        tag=choice.tag or None,
    )


def _snapshot(folder: Path) -> Path | None:
    """Return the snapshot that ``refs/main`` names; None for a download that was never finished."""
    try:
        commit = read_start(folder / "refs" / "main", 64).decode("ascii", "replace").strip()
        return join_inside(folder, "snapshots", commit) if is_commit(commit) else None
    except (OSError, UnsafeName):
        return None


def _models(repo: str, snapshot: Path) -> Iterator[Found]:
    tree = dict(_walk(snapshot))
    projectors = {folder: [name for name in names if _is_projector_file(name)] for folder, names in tree.items()}
    for folder, names in tree.items():
        for model in model_files(names):
            tag = tag_of(model.stem)
            if tag is None or is_companion(model.stem, anywhere=True):
                continue
            yield Found(
                id=f"{repo}:{tag}",
                source="cache",
                files=model.paths(folder),
                mmproj=_nearest_projector(projectors, folder, snapshot),
                repo=repo,
                tag=tag,
            )


def _walk(snapshot: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder with its files, shallow ones first. Linked folders are not entered, so there are no loops."""
    waiting = [(snapshot, 0)]
    for visited, (folder, depth) in enumerate(waiting):
        try:
            files, folders = list_folder(folder)
        except OSError:
            continue
        yield folder, files
        if depth < MAX_DEPTH and visited < MAX_FOLDERS:
            waiting += [(folder / name, depth + 1) for name in folders if not (folder / name).is_symlink()]


def _is_projector_file(name: str) -> bool:
    stem = stem_of(name)
    return stem is not None and is_projector(stem)


def _nearest_projector(projectors: Mapping[Path, list[str]], folder: Path, snapshot: Path) -> str | None:
    """Find it beside the model, else in the closest folder above it within the snapshot."""
    while True:
        if name := pick_projector(projectors.get(folder, [])):
            return str(folder / name)
        if folder == snapshot:
            return None
        folder = folder.parent
