"""The room that is taken on the disks of this machine: by the program's folders, and everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


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
