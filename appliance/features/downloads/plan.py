"""The parts of a download, known before its first byte: files, hashes, sizes, and their places in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from appliance.catalog.found import LISTING, UnsafeName, current_snapshot, join_inside, list_folder, listed_models
from appliance.core.models.download import PRESET_FILE, ModelFiles, RemoteFile, WantedModel, pick
from appliance.core.models.file_names import first_part, listing_of, model_id, tags_of
from appliance.core.models.hub_address import MAIN
from appliance.core.models.names import folder_of, repo_of
from appliance.errors import Forbidden, ModelError, NotFound
from appliance.features.downloads.hub_api import ModelHub
from appliance.store.model_files import free_bytes, link, remove_empty, replace, share, unlink, write_whole
from appliance.store.partial_file import JOURNAL, PartialHead, discard, holds, journaled
from appliance.upstream.file_transfer import DownloadPlan, PlannedFile

MAKE_ROOM = "make room ('llama-appliance disk' shows what takes it)"


class NotEnoughSpace(ModelError):
    """The disk has no room for the rest."""

    reason = "disk_full"

    def __init__(self, folder: str, needed: int, free: int) -> None:
        super().__init__(
            f"the download needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free; "
            f"{MAKE_ROOM}, or name another cache with HF_HUB_CACHE"
        )


class ModelTooLarge(Forbidden):
    """The model has more bytes than the configuration lets a request download."""

    reason = "download_too_large"

    def __init__(self, model: str, size: int, most: int) -> None:
        super().__init__(
            f"{model} has {size / 1e9:.2f} GB, and requests may download at most {most / 1e9:.2f} GB "
            f"(autoDownloadMax); 'llama-appliance pull {model}' downloads it anyway"
        )


class Unfinished(Struct, frozen=True):
    """A model of which files have begun to come: `Downloads.start` continues it. In bytes of these files."""

    model: str
    done: int
    total: int


def have(plan: DownloadPlan) -> dict[str, int]:
    """Return the bytes that are here already, of each file by its address."""
    return {file.url: file.size if file.here() else file.begun() for file in plan.files}


def check_space(plan: DownloadPlan, reserved: int) -> None:
    """Raise NotEnoughSpace if the disk cannot take the rest beside ``reserved`` bytes."""
    missing = plan.total - sum(have(plan).values())
    free = free_bytes(plan.folder)
    if missing and missing + reserved > free:
        raise NotEnoughSpace(str(plan.folder.parent), missing + reserved, free)


def prepare(plan: DownloadPlan, kept: frozenset[str]) -> None:
    """Note the models of the repository, by which those here are named. Remove parts of files whose content has
    changed since, except those with these hashes.
    """
    if plan.unchanged:
        paths = listing_of(file.path for file in plan.unchanged)
        if paths:
            write_whole(plan.folder / LISTING, "\n".join(paths).encode())
        else:
            unlink(plan.folder / LISTING)
    wanted = {file.path: file.oid for file in plan.files}
    for blob, head in begun_in(plan.folder):
        if head.path in wanted and wanted[head.path] != head.oid and head.oid not in kept:
            discard(blob)


def settle(plan: DownloadPlan, check: Callable[[], None]) -> None:
    """Name the finished files in the snapshot, bring unchanged ones along, and make it the current one.

    ``check`` is called while files are read, and may raise; a later call completes what is missing.
    """
    if plan.ref is None:
        for file in reversed(plan.files):  # the first one is the model, and the others belong to it
            if file.blob != file.entry and file.blob.exists():
                file.entry.parent.mkdir(parents=True, exist_ok=True)
                replace(file.blob, file.entry)
                remove_empty(file.blob.parent, plan.folder.parent)
        return
    for file in plan.files:
        link(file.blob, file.entry)
    _bring_along(plan, check)
    write_whole(plan.folder / "refs" / plan.ref, plan.commit.encode("ascii"))


def _bring_along(plan: DownloadPlan, check: Callable[[], None]) -> None:
    """Keep other models of the repository listed when its main branch has moved on, unless they changed.

    A link tells by its blob's name what a file holds. Where links cannot be made, the file itself is read.
    """
    old = current_snapshot(plan.folder)
    new = plan.folder / "snapshots" / plan.commit
    if old is None or old == new:
        return
    for file in plan.unchanged:
        before, after = _inside(old, file.path), _inside(new, file.path)
        if before is None or after is None or not before.is_file() or after.exists():
            continue
        if before.is_symlink():
            same = before.resolve() == (plan.folder / "blobs" / file.oid).resolve()
        else:
            same = holds(before, file.oid, file.size, check)
        if same:
            share(before, after)


async def plan_download(hub: ModelHub, wanted: WantedModel, cache: Path) -> DownloadPlan:
    """Ask the hub. Raises as `ModelHub` does, NotFound for a missing tag, model or file, and TooLarge."""
    repo = wanted.reference.repo
    commit, other = await hub.commit_of(repo), wanted.revision != MAIN
    files = await hub.files_of(repo, commit)
    choice = pick(wanted, await hub.files_of(repo, await hub.commit_of(repo, wanted.revision)) if other else files)
    if other and (changed := [file.path for file in choice.files if file not in files]):
        raise NotFound(
            f"{changed[0]} of {repo} at {wanted.revision!r} is another file than on its main branch, and this program "
            f"downloads from there only; 'hf download {repo} {changed[0]} --revision {wanted.revision} --local-dir "
            "FOLDER' fetches it into a folder for --models-dir"
        )
    sized: list[RemoteFile] = []
    for number, file in enumerate(choice.files):
        size = file.size
        if number == 0 or size is None:  # the first one also tells whether this user may read the repository
            told = await hub.size_of(repo, f"{commit}/{file.path}")
            size = size if size is not None else told
        if not size:
            raise NotFound(f"{repo} has {file.path} without any contents; its owner has to upload it")
        sized.append(structs.replace(file, size=size))
    folder = join_inside(cache, folder_of(repo))
    model_id, total = _name_of(wanted, choice), sum(file.size or 0 for file in sized)
    if 0 < wanted.most < total:
        raise ModelTooLarge(model_id, total, wanted.most)
    return DownloadPlan(
        model_id=model_id,
        repo=repo,
        commit=commit,
        folder=folder,
        files=tuple(_planned(hub, repo, commit, folder, file) for file in sized),
        unchanged=tuple(files),
    )


def _name_of(wanted: WantedModel, choice: ModelFiles) -> str:
    """Use the path of a file that is not a model of its own."""
    first = choice.model[0]
    by_tag = not (wanted.sidecars or first.name == PRESET_FILE)
    return choice.id(wanted.reference.repo) if by_tag else f"{wanted.reference.repo}/{first.path}"


def begun_in(folder: Path) -> list[tuple[Path, PartialHead]]:
    """Return every unfinished file of a repository's folder: its coming blob, and its meaning."""
    try:
        names, _ = list_folder(folder / "blobs")
    except OSError:
        return []
    found: list[tuple[Path, PartialHead]] = []
    for name in names:
        if name.endswith(JOURNAL) and (known := journaled(blob := folder / "blobs" / name.removesuffix(JOURNAL))):
            found.append((blob, known[0]))
    return found


def model_of_part(head: PartialHead, listed: Sequence[str]) -> str:
    """Return the name of the model that an unfinished file belongs to, with which it is asked for again.

    ``listed``: see `listed_models`.
    """
    first = first_part(head.path)
    tag = tags_of([head.path, *listed]).get(first)
    return head.repo if tag is None else model_id(head.repo, tag, first)


def unfinished_in(cache: Path) -> list[Unfinished]:
    """Return every unfinished model in a cache, whatever ended its download."""
    found: dict[str, Unfinished] = {}
    for folder in repos_in(cache):
        listed = listed_models(folder)
        for blob, head in begun_in(folder):
            known, model = journaled(blob), model_of_part(head, listed)
            before = found.get(model, Unfinished(model, 0, 0))
            found[model] = Unfinished(model, before.done + (known[1] if known else 0), before.total + head.size)
    return list(found.values())


def repos_in(cache: Path) -> list[Path]:
    """Return the folders of repositories in a cache; none if it cannot be listed."""
    try:
        return [cache / folder for folder in list_folder(cache)[1] if repo_of(folder)]
    except OSError:
        return []


def _planned(hub: ModelHub, repo: str, commit: str, folder: Path, file: RemoteFile) -> PlannedFile:
    entry = _inside(folder / "snapshots" / commit, file.path)
    if entry is None:
        raise NotFound(f"{repo} has a file whose name cannot be used here: {file.path!r}")
    url = hub.url_of(repo, f"{commit}/{file.path}")
    return PlannedFile.in_repo(url, file.path, file.oid, file.size or 0, entry, folder)


def _inside(folder: Path, path: str) -> Path | None:
    try:
        return join_inside(folder, *path.split("/"))
    except UnsafeName:
        return None
