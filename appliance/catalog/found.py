"""Models on this machine's disk by their file names alone, before any header is read: a models folder, the hub cache.

A folder's rules are those of llama-server's ``--models-dir``. ``X.gguf`` is model X. ``D/`` is model D: the first shard
or else the model file in it, any projector and the first draft beside it. Companions on the top level belong to nobody
and are left out. Deeper folders, of which llama-server knows nothing, are read as LM Studio lays them out:
``PUBLISHER/REPO/X-Q4_K_M.gguf`` is ``PUBLISHER/REPO:Q4_K_M``. Two things llama-server leaves open are settled here:
shards on the top level make one model (which also answers to its first file's name), and of several models in one
``D/`` the preferred quantisation is taken.

The cache is filled by llama-server's ``-hf`` and by ``huggingface-cli``: ``models--<org>--<repo>/refs/main`` holds a
commit, ``snapshots/<commit>/`` the files, as links into ``blobs/`` or (on systems without links) as files. The id is
``<org>/<repo>:<TAG>``, the tag being the end of the file's stem. huggingface_hub's own scan is not used: every start of
the server scans, and the library would cost it 70 ms and 11 MB. It does not know llama-server's ``LLAMA_CACHE`` either.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from appliance.core.models.download import Location, RegistryImage, Remote, RemoteFile, WantedModel, pick
from appliance.core.models.file_names import model_id, tags_of
from appliance.core.models.model import NO_WORDS, ModelPreset, OwnWords, Source
from appliance.core.models.names import (
    PROJECTOR_TYPES,
    QUANTISATIONS,
    Shard,
    folder_of,
    is_commit,
    is_companion,
    is_draft,
    is_projector,
    no_model,
    prefer,
    repo_of,
    shard_of,
    stem_of,
    tag_of,
)
from appliance.errors import NotFound
from appliance.store.model_files import read_start

MAX_ENTRIES = 100_000
"""Number of entries of one folder that are read; a folder with more is not a models folder."""

FORBIDDEN = frozenset("/\\:\0")
"""Separators of every system, and the drive and stream mark of Windows."""
LISTING = ".gguf-files"
"""The file in a repository's folder that has the paths of its models on the hub, one in a line: what is pulled later
does not change the name of what is here.
"""
MAX_LISTING = 1 << 20
MAX_DEPTH = 4
"""Folders below a snapshot; repositories use one (``Q4_K_M/``, ``MTP/``)."""
MAX_LEFT = 20
"""Number of files that are left out and named, each with its reason."""
MAX_FOLDERS = 1000
"""Number of folders of one snapshot that are read."""


class UnsafeName(ValueError):
    """A name that would lead out of the folder to which it is joined."""


def join_inside(root: Path, *names: str) -> Path:
    """Join names from outside to a folder. Each must be one plain component. Raises UnsafeName."""
    for name in names:
        if name in ("", ".", "..") or not FORBIDDEN.isdisjoint(name):
            raise UnsafeName(name)
    return root.joinpath(*names)


def list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """Return names of files and of folders, sorted; links count as what they lead to, or as files. Raises OSError."""
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
            (folders if _is_folder(entry) else files).append(entry.name)
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def why(error: OSError) -> str:
    """Return the reason without number and path, as part of a sentence."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist, or is a link to a file that does not"
    return error.strerror or str(error)


class Cached(Struct, frozen=True, kw_only=True):
    """A model in the cache: its shards in order, and its projector."""

    files: tuple[str, ...]
    mmproj: str | None
    tag: str | None
    id: str = ""
    """Its name, for one of a repository."""


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


def scan_cache(root: Path) -> Iterator[FoundModel]:
    """Scan the cache. Raises OSError if the cache itself cannot be read; an unusable repository is skipped."""
    for folder in list_folder(root)[1]:
        repo = repo_of(folder)
        snapshot = current_snapshot(root / folder) if repo else None
        if repo and snapshot:
            yield from _models(repo, snapshot)


def files_of(root: Path, repo: str) -> tuple[Path, list[RemoteFile]] | None:
    """Return the snapshot of a cached repository and its complete files; without their hashes."""
    try:
        snapshot = current_snapshot(join_inside(root, folder_of(repo)))
    except UnsafeName:
        return None
    if snapshot is None:
        return None
    found = [path for folder, names in _walk(snapshot) for name in names if (path := folder / name).is_file()]
    return snapshot, [RemoteFile(path.relative_to(snapshot).as_posix(), "") for path in found]


def in_cache(root: Path, wanted: WantedModel) -> Cached | None:
    """Return the model in the cache that is meant; None unless all of it is here."""
    found = files_of(root, wanted.reference.repo)
    if found is None:
        return None
    snapshot, files = found
    try:
        choice = pick(wanted, files, listed_models(snapshot.parent.parent))
    except NotFound:
        return None
    return Cached(
        files=tuple(str(snapshot / file.path) for file in choice.model),
        mmproj=str(snapshot / choice.projector.path) if choice.projector is not None else None,
        tag=choice.tag or None,
        id=choice.id(wanted.reference.repo),
    )


def here(cache: Path, wanted: Remote) -> Cached | None:
    """Return its files, if all of them are in the cache, or at their requested places."""
    match wanted:
        case WantedModel():
            return in_cache(cache, wanted)
        case RegistryImage():
            return image_in_cache(cache, wanted)
        case Location():
            paths = paths_of(wanted, cache)  # files get these names when they are complete
            return (
                Cached(files=tuple(map(str, paths)), mmproj=None, tag=None) if all(map(Path.is_file, paths)) else None
            )


def image_in_cache(cache: Path, image: RegistryImage) -> Cached | None:
    """Return the model, if all of it is here."""
    try:
        snapshot = current_snapshot(join_inside(cache, image.folder), image.tag)
        if snapshot is None:
            return None
        names, _ = list_folder(snapshot)
    except (OSError, UnsafeName):
        return None
    found = [snapshot / name for name in names if stem_of(name) is not None and (snapshot / name).is_file()]
    models = [str(path) for path in found if not is_projector(path.name)]
    projector = next((str(path) for path in found if is_projector(path.name)), None)
    return Cached(files=(models[0],), mmproj=projector, tag=image.tag) if models else None


def paths_of(location: Location, cache: Path) -> list[Path]:
    """Return the places of the parts, as in llama-server: the first at the given path, the others beside it."""
    names = [Location(url=url).name for url in location.parts()]
    if location.path is None:
        return [join_inside(cache, name) for name in names]
    first = Path(location.path).absolute()
    return [first] if len(names) == 1 else [first.with_name(name) for name in names]


def current_snapshot(folder: Path, ref: str = "main") -> Path | None:
    """Return the snapshot that a name leads to; None for a download that was never finished."""
    try:
        commit = read_start(join_inside(folder, "refs", ref), 64).decode("ascii", "replace").strip()
        return join_inside(folder, "snapshots", commit) if is_commit(commit) else None
    except (OSError, UnsafeName):
        return None


def _models(repo: str, snapshot: Path) -> Iterator[FoundModel]:
    tree = dict(_walk(snapshot))
    paths = {(folder / name).relative_to(snapshot).as_posix() for folder, names in tree.items() for name in names}
    tags = tags_of([*paths, *listed_models(snapshot.parent.parent)])
    projectors = {
        folder: [name for name in names if is_projector(stem_of(name) or "")] for folder, names in tree.items()
    }
    for folder, names in tree.items():
        for model in model_files(names):
            first = (folder / model.names[0]).relative_to(snapshot).as_posix()
            if first not in tags:
                continue
            yield FoundModel(
                id=model_id(repo, tags[first], first),
                source="cache",
                files=model.paths(folder),
                mmproj=_nearest_projector(projectors, folder, snapshot),
                repo=repo,
                tag=tags[first] or None,
            )


def listed_models(folder: Path) -> list[str]:
    """Return the models of a cached repository on the hub; none where their names do not depend on each other."""
    try:
        return read_start(folder / LISTING, MAX_LISTING).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _walk(snapshot: Path, skipped: list[Path] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder with its files, shallow ones first. Linked folders are not entered, so there are no loops.

    ``skipped`` gets those, and folders that lie too deep; with it hidden folders are passed over.
    """
    waiting = [(snapshot, 0)]
    for visited, (folder, depth) in enumerate(waiting):
        try:
            files, folders = list_folder(folder)
        except OSError:
            continue
        yield folder, files
        deeper = depth < MAX_DEPTH and visited < MAX_FOLDERS
        for below in (folder / name for name in folders if skipped is None or not name.startswith(".")):
            if deeper and not below.is_symlink():
                waiting.append((below, depth + 1))
            elif skipped is not None:
                skipped.append(below)


def _nearest_projector(projectors: Mapping[Path, list[str]], folder: Path, snapshot: Path) -> str | None:
    """Find it beside the model, else in the closest folder above it within the snapshot."""
    while True:
        if name := pick_projector(projectors.get(folder, [])):
            return str(folder / name)
        if folder == snapshot:
            return None
        folder = folder.parent


class FoundModel(Struct, frozen=True, kw_only=True):
    """A model by its files. ``files`` holds the path of every shard that should exist, the first one first.

    It is empty only for a preset whose file is not here: ``fetch`` says where it comes from, or the engine fetches it,
    or ``error`` says what is missing.
    """

    id: str
    aliases: tuple[str, ...] = ()
    source: Source
    files: tuple[str, ...]
    mmproj: str | None = None
    draft: str | None = None
    repo: str | None = None
    tag: str | None = None
    args: tuple[str, ...] = ()
    words: OwnWords = NO_WORDS
    error: str | None = None
    fetch: tuple[Remote, ...] = ()
    definition: ModelPreset = ModelPreset()
    hidden: bool = False


class ModelFile(Struct, frozen=True):
    """One model among the files of a folder: a single file, or a set of shards of which at least one exists."""

    stem: str
    """The name without the shard's number."""
    shard: Shard | None
    names: tuple[str, ...]

    def paths(self, folder: Path) -> tuple[str, ...]:
        return tuple(str(folder / name) for name in self.names)


def all_shards(path: Path) -> tuple[str, ...]:
    """Return the files of a model that is named by one of them."""
    shard = shard_of(stem_of(path.name) or "")
    if shard is None:
        return (str(path),)
    return tuple(str(path.with_name(shard.name(number))) for number in range(1, shard.total + 1))


def model_files(names: Iterable[str]) -> list[ModelFile]:
    """Return the models among file names of one folder, in order; shards are grouped, other files skipped."""
    models: dict[str, ModelFile] = {}
    for name in names:
        stem = stem_of(name)
        if stem is None:
            continue
        shard = shard_of(stem)
        if shard is None:
            models[name] = ModelFile(stem, None, (name,))
            continue
        parts = tuple(shard.name(number) for number in range(1, shard.total + 1))
        models.setdefault(parts[0], ModelFile(shard.stem, shard, parts))
    return list(models.values())


def scan_folder(root: Path, notes: list[str]) -> Iterator[FoundModel]:
    """Scan a folder. Raises OSError if the folder itself cannot be read; mistakes inside are in the entries, and files
    that are left out in ``notes``.
    """
    files, folders = list_folder(root)
    left: list[str] = []
    for name in folders:
        if not name.startswith("."):
            yield from _below(root, name, left)
    for model in model_files(files):
        if is_companion(model.stem, anywhere=False):
            left.append(f"{root / model.names[0]} is left out: it belongs to a model; put both into one folder")
        else:
            yield FoundModel(
                id=model.stem,
                aliases=(stem,) if model.shard and (stem := stem_of(model.names[0])) else (),
                source="models_dir",
                files=model.paths(root),
            )
    notes += left[:MAX_LEFT]
    if len(left) > MAX_LEFT:
        notes.append(f"{len(left) - MAX_LEFT} more files and folders in {root} are left out for such reasons")


def _below(root: Path, name: str, left: list[str]) -> Iterator[FoundModel]:
    """Yield the model of one folder, and those in the folders below it."""
    if repo_of(name):
        left.append(f"{root / name} is left out: it is part of a Hugging Face cache; name that in HF_HUB_CACHE")
        return
    top, skipped = root / name, list[Path]()
    try:
        files, folders = list_folder(top)
    except OSError as error:
        why_not = f"the folder cannot be read: {why(error)}"
        yield FoundModel(id=name, source="models_dir", files=(str(top),), error=why_not)
        return
    if not folders or (top.is_symlink() and root.resolve().is_relative_to(top.resolve())):  # a link back up
        tree = [(top, files)]
    else:
        tree = list(_walk(top, skipped))
    found = list(_subfolder(top, files))
    for folder, names in tree[1:]:
        found += models_of(folder.relative_to(root).as_posix(), folder, names, "models_dir")
    yield from found
    if not skipped and len(found) == sum(len(names) for _, names in tree):
        return  # one file, one model: nothing is left
    used = {path for model in found for path in (*model.files, model.mmproj, model.draft)}
    for folder, file in ((folder, file) for folder, names in tree for file in model_files(names)):
        if (path := file.paths(folder)[0]) not in used:
            left.append(f"{path} is left out: {_why_left(file, folder)}")
    left += [f"{folder} is left out: it is a link, or lies too deep; move it up" for folder in skipped]


def _why_left(file: ModelFile, folder: Path) -> str:
    if kind := no_model(file.stem):
        return f"it is {kind}"
    if is_companion(file.stem, anywhere=True):
        return "it belongs to a model, and no model in its folder takes it"
    return f"the folder '{folder.name}' is one model, another of its files; give this one a folder of its own"


def _subfolder(folder: Path, files: list[str]) -> Iterator[FoundModel]:
    everything = model_files(files)
    models = [model for model in everything if not is_companion(model.stem, anywhere=False)]
    models = [model for model in models if not no_model(model.stem)] or models
    shards = [model for model in models if model.shard]
    model = prefer([(tag_of(model.stem), model) for model in shards or models], QUANTISATIONS)
    if model is None:
        return
    projector = pick_projector([model.names[0] for model in everything if is_projector(model.stem)])
    draft = next((model.names[0] for model in everything if is_draft(model.stem)), None)
    yield FoundModel(
        id=folder.name,
        source="models_dir",
        files=model.paths(folder),
        mmproj=str(folder / projector) if projector else None,
        draft=str(folder / draft) if draft else None,
    )


def models_of(name: str, folder: Path, files: Iterable[str], source: Source) -> Iterator[FoundModel]:
    """Yield every model of a folder as LM Studio keeps them: by its quantisation, or else by its file's name."""
    everything = model_files(files)
    models = [model for model in everything if not is_companion(model.stem, anywhere=True)]
    projector = pick_projector([model.names[0] for model in everything if is_projector(model.stem)])
    draft = next((model.names[0] for model in everything if is_draft(model.stem)), None)
    tags, taken = Counter(tag_of(model.stem) for model in models), set[str]()
    for model in models:
        tag = tag_of(model.stem)
        known = tag if tag is not None and tags[tag] == 1 and tag not in taken else None
        label = next((one for one in (known, model.stem) if one and one not in taken), model.names[0])
        taken.add(label)
        yield FoundModel(
            id=f"{name}:{label}",
            aliases=(model.stem,),
            source=source,
            files=model.paths(folder),
            mmproj=str(folder / projector) if projector else None,
            draft=str(folder / draft) if draft and source == "models_dir" else None,
            repo=name,
            tag=known,
        )


def pick_projector(names: list[str]) -> str | None:
    """One of several projector files."""
    return prefer([(tag_of(stem_of(name) or name), name) for name in names], PROJECTOR_TYPES)
