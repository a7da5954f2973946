"""The shapes of ``GET /api/disk``, and the place of each byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from appliance.core.models.download_status import DownloadStatus, UnfinishedSpace
from appliance.core.models.model import Source


class FolderUse(Struct, frozen=True, kw_only=True):
    """The room that one of the program's folders takes, or one of its files."""

    kind: str  # its purpose: ``models``, ``cache``, ``engines`` and so on
    path: str
    disk: int  # the number of its `DiskSpace`
    bytes: int
    files: int


class DiskSpace(Struct, frozen=True, kw_only=True):
    """One file system, in bytes. ``other``: what is in none of the folders, with what the system keeps for itself."""

    disk: int
    path: str  # the first folder that lies on it
    total: int
    free: int
    other: int


class ModelSpace(Struct, frozen=True, kw_only=True):
    """One model on the disk. ``why`` says why it cannot be removed; empty if it can."""

    model: str
    source: Source
    size: int
    frees: int = 0  # bytes that its removal gives back: contents that another model shares stay
    why: str = ""
    state: str = "unloaded"  # a model that runs is stopped before its removal
    last_used: datetime | None = None  # the time of its last request; None if the activity log has none


class DiskTable(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /api/disk``."""

    disks: tuple[DiskSpace, ...]
    folders: tuple[FolderUse, ...]
    models: tuple[ModelSpace, ...]
    unfinished: tuple[UnfinishedSpace, ...]
    downloads: tuple[DownloadStatus, ...] = ()  # every download that has not finished


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
