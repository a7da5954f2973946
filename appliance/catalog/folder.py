"""Models in a models folder, by llama-server's ``--models-dir`` rules.

``X.gguf`` is model X. ``D/`` is model D: the first shard or else the model file in it, any projector and the first
draft beside it. Companions on the top level belong to nobody and are passed over; nothing is looked for deeper.

Two things llama-server leaves open are settled here: shards on the top level make one model (which also answers to
its first file's name), and of several models in one ``D/`` the preferred quantisation is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.catalog.files import list_folder, why
from appliance.catalog.found import Found, ModelFile, model_files
from appliance.core.models.names import (
    PROJECTOR_TYPES,
    QUANTISATIONS,
    is_companion,
    is_draft,
    is_projector,
    prefer,
    stem_of,
    tag_of,
)


def scan_folder(root: Path) -> Iterator[Found]:
    """Scan a folder. Raises OSError if the folder itself cannot be read; mistakes inside are in the entries."""
    files, folders = list_folder(root)
    for folder in folders:
        if not folder.startswith(".") and (found := _subfolder(root / folder)):
            yield found
    for model in model_files(files):
        if not is_companion(model.stem, anywhere=False):
            yield Found(
                id=model.stem,
                aliases=_first_file_alias(model),
                source="models_dir",
                files=model.paths(root),
            )


def _first_file_alias(model: ModelFile) -> tuple[str, ...]:
    stem = stem_of(model.names[0])
    return (stem,) if model.shard and stem else ()


def _subfolder(folder: Path) -> Found | None:
    try:
        files, _ = list_folder(folder)
    except OSError as error:
        return Found(
            id=folder.name,
            source="models_dir",
            files=(str(folder),),
            error=f"the folder cannot be read: {why(error)}",
        )
    everything = model_files(files)
    models = [model for model in everything if not is_companion(model.stem, anywhere=False)]
    shards = [model for model in models if model.shard]
    model = prefer([(tag_of(model.stem), model) for model in shards or models], QUANTISATIONS)
    if model is None:
        return None
    projector = pick_projector([model.names[0] for model in everything if is_projector(model.stem)])
    draft = next((model.names[0] for model in everything if is_draft(model.stem)), None)
    return Found(
        id=folder.name,
        source="models_dir",
        files=model.paths(folder),
        mmproj=str(folder / projector) if projector else None,
        draft=str(folder / draft) if draft else None,
    )


def pick_projector(names: list[str]) -> str | None:
    """One of several projector files."""
    return prefer([(tag_of(stem_of(name) or name), name) for name in names], PROJECTOR_TYPES)
