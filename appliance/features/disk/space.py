"""The room that models and folders of this program take on the disk, and the bytes that a removal would free.

Everything here waits for the disk. ``disk`` and ``GET /api/disk`` show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from appliance.catalog.download_plan import unfinished_in
from appliance.catalog.download_status import DownloadStatus
from appliance.catalog.removal import plan_leftover, plan_removal
from appliance.core.models.model import Model, Source
from appliance.errors import Forbidden
from appliance.store.model_files import space_of, taken_in

SQLITE = ("", "-wal", "-shm")
"""Endings of the files that are one database, or of a plain file or folder."""


class FolderUse(Struct, frozen=True, kw_only=True):
    """The room that one of the program's folders takes, or one of its files."""

    kind: str
    """Its purpose: ``models``, ``cache``, ``engines`` and so on."""
    path: str
    disk: int
    """The number of its `DiskSpace`."""
    bytes: int
    files: int


class DiskSpace(Struct, frozen=True, kw_only=True):
    """One file system, in bytes. ``other``: what is in none of the folders, with what the system keeps for itself."""

    disk: int
    path: str
    """The first folder that lies on it."""
    total: int
    free: int
    other: int


class ModelSpace(Struct, frozen=True, kw_only=True):
    """One model on the disk. ``why`` says why it cannot be removed; empty if it can."""

    model: str
    source: Source
    size: int
    frees: int = 0
    """Bytes that its removal gives back: contents that another model shares stay."""
    why: str = ""
    state: str = "unloaded"
    """A model that runs is stopped before its removal."""
    last_used: datetime | None = None
    """The time of its last request; None if the activity log has none."""


class UnfinishedSpace(Struct, frozen=True, kw_only=True):
    """The part of a download that has ended."""

    model: str
    done: int
    total: int
    frees: int


class DiskTable(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /api/disk``."""

    disks: tuple[DiskSpace, ...]
    folders: tuple[FolderUse, ...]
    models: tuple[ModelSpace, ...]
    unfinished: tuple[UnfinishedSpace, ...]
    downloads: tuple[DownloadStatus, ...] = ()
    """Every download that has not finished."""


def measure(
    folders: Mapping[str, Path], models: Iterable[Model], cache: Path | None, models_dir: Path | None
) -> DiskTable:
    """Look at the disk. Folders that are not there are left out, and what cannot be read counts as nothing."""
    uses: list[FolderUse] = []
    numbers: dict[int, int] = {}
    sizes: dict[int, tuple[int, int]] = {}
    others = frozenset(map(str, folders.values()))
    for kind, path in folders.items():
        found = [taken_in(path.with_name(path.name + ending), others) for ending in SQLITE]
        if files := sum(one.files for one in found):
            space = space_of(path)
            disk = numbers.setdefault(space.device, len(numbers))
            sizes[disk] = space.total, space.free
            taken = sum(one.bytes for one in found)
            uses.append(FolderUse(kind=kind, path=str(path), disk=disk, bytes=taken, files=files))
    return DiskTable(
        disks=disk_spaces(uses, sizes),
        folders=tuple(uses),
        models=tuple(_model_space(model, cache, models_dir) for model in models if model.size),
        unfinished=tuple(_unfinished(cache)) if cache is not None else (),
    )


def disk_spaces(folders: Sequence[FolderUse], sizes: Mapping[int, tuple[int, int]]) -> tuple[DiskSpace, ...]:
    """Return the file systems of these folders. ``sizes``: the total and the free bytes of each."""
    found: dict[int, DiskSpace] = {}
    for folder in folders:
        if folder.disk not in found:
            total, free = sizes[folder.disk]
            ours = sum(each.bytes for each in folders if each.disk == folder.disk)
            other = max(0, total - free - ours)  # a folder may grow while another one is measured
            found[folder.disk] = DiskSpace(disk=folder.disk, path=folder.path, total=total, free=free, other=other)
    return tuple(found.values())


def _model_space(model: Model, cache: Path | None, models_dir: Path | None) -> ModelSpace:
    frees, why = 0, ""
    try:
        frees = plan_removal(model, cache, models_dir).frees()
    except Forbidden as error:
        why = str(error)
    except OSError as error:
        why = f"'{model.id}' cannot be removed: {error}"
    return ModelSpace(model=model.id, source=model.source, size=model.size, frees=frees, why=why)


def _unfinished(cache: Path) -> Iterable[UnfinishedSpace]:
    for one in unfinished_in(cache):
        if (removal := plan_leftover(one.model, cache)) is not None:
            yield UnfinishedSpace(model=one.model, done=one.done, total=one.total, frees=removal.frees())
