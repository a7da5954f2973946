"""The room that models and folders of this program take, and the bytes that a removal would free.

Everything here waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from appliance.catalog.supply import Supply
from appliance.core.models.model import Model
from appliance.errors import Forbidden
from appliance.features.disk.rules import DiskTable, FolderUse, ModelSpace, disk_spaces
from appliance.store.model_files import space_of, taken_in

SQLITE = ("", "-wal", "-shm")  # endings of the files that are one database, or of a plain file or folder


def measure(folders: Mapping[str, Path], models: Iterable[Model], supply: Supply) -> DiskTable:
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
        models=tuple(_model_space(model, supply) for model in models if model.size),
        unfinished=tuple(supply.unfinished()),
    )


def _model_space(model: Model, supply: Supply) -> ModelSpace:
    frees, why = 0, ""
    try:
        frees = supply.frees(model)
    except Forbidden as error:
        why = str(error)
    except OSError as error:
        why = f"'{model.id}' cannot be removed: {error}"
    return ModelSpace(model=model.id, source=model.source, size=model.size, frees=frees, why=why)
