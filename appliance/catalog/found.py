"""A model by its file names alone, before any header is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from appliance.core.llama.presets import Definition
from appliance.core.models.elsewhere import Remote
from appliance.core.models.model import Source
from appliance.core.models.names import Shard, shard_of, stem_of


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
