"""Models by their file names alone, before any header is read; and those in a models folder.

The rules of a folder are those of llama-server's ``--models-dir``. ``X.gguf`` is model X. ``D/`` is model D: the first
shard or else the model file in it, any projector and the first draft beside it. Companions on the top level belong to
nobody and are passed over; nothing is looked for deeper.

Two things llama-server leaves open are settled here: shards on the top level make one model (which also answers to
its first file's name), and of several models in one ``D/`` the preferred quantisation is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from appliance.catalog.files import list_folder, why
from appliance.core.llama.presets import Definition
from appliance.core.models.elsewhere import Remote
from appliance.core.models.model import Source
from appliance.core.models.names import (
    PROJECTOR_TYPES,
    QUANTISATIONS,
    Shard,
    is_companion,
    is_draft,
    is_projector,
    prefer,
    shard_of,
    stem_of,
    tag_of,
)


class Found(Struct, frozen=True, kw_only=True):
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
    error: str | None = None
    fetch: tuple[Remote, ...] = ()
    definition: Definition = Definition()
    """The options of presets, command line and environment for it."""
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
