"""Model presets on disk: read, and applied to the models that were found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, structs

from appliance.catalog.files import read_start
from appliance.catalog.found import Found
from appliance.catalog.preset_places import placed
from appliance.core.config.nodes import Problem
from appliance.core.llama.preset_file import NONE, Choice, Choices, from_words
from appliance.core.llama.presets import (
    DRAFT,
    MODEL,
    PROJECTOR,
    REPO,
    Definition,
    Layers,
    Presets,
    define,
    read_presets,
)
from appliance.core.models.names import QUANTISATIONS, prefer
from appliance.errors import InvalidConfig, UsageError

LARGEST = 4 << 20
"""Largest preset file in bytes; a thousand models take about 100 KB."""


class PresetSource(Struct, frozen=True, kw_only=True):
    """The source of presets, and the options for all models beside them. Made by `open_presets`."""

    file: Path | None
    layers: Layers
    """The presets at the time when this was made."""
    strange: bool = False
    """True if the file comes from a repository, so from somebody else."""
    cache: Path | None = None
    """The cache that may have the repositories that it names, if the cache is not served anyway."""

    def signature(self) -> tuple[int, int, int] | None:
        """Changes when the file does; None while there is none."""
        try:
            status = self.file.stat() if self.file is not None else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size) if status is not None else None

    def read(self) -> tuple[Layers, list[Problem]]:
        """Read the file again; the problems are warnings. Raises UsageError, InvalidConfig among them."""
        if self.file is None:
            return self.layers, []
        presets, problems = read_presets(read_ini(self.file), str(self.file), strange=self.strange)
        if errors := [problem for problem in problems if problem.level == "error"]:
            raise InvalidConfig(errors)
        return structs.replace(self.layers, presets=presets), problems


def open_presets(
    file: Path | None,
    *,
    environment: Choices = NONE,
    command: Choices = NONE,
    strange: bool = False,
    cache: Path | None = None,
) -> tuple[PresetSource, list[Problem]]:
    """Read presets for the first time; the problems are warnings. Raises UsageError, InvalidConfig among them."""
    beside = Layers(environment=environment, presets=Presets(), command=command)
    source = PresetSource(
        file=file.absolute() if file is not None else None, layers=beside, strange=strange, cache=cache
    )
    layers, warnings = source.read()
    return structs.replace(source, layers=layers), warnings


def read_ini(file: Path, *, named_by: str = "--models-preset") -> str:
    """Return the text of an INI file; ``named_by`` is how the user chose it. Raises UsageError."""
    try:
        data = read_start(file, LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}; check {named_by}") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}; check {named_by}") from None
    if len(data) > LARGEST:
        raise UsageError(f"{file} is larger than {LARGEST >> 20} MiB, which is too large for presets; check {named_by}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line}: is not UTF-8 text; save the file as UTF-8") from None


def with_presets(found: Sequence[Found], layers: Layers, notes: list[str], cache: Path | None = None) -> list[Found]:
    """Return the found models with the presets applied, and those that only presets name. Ids are unique.

    Repositories are looked for in ``cache``, and otherwise fetched later.
    """
    cached = [model for model in found if model.source == "cache"]
    layers = _by_id(layers, found)
    sections = layers.presets.sections
    known = {model.id: model for model in found}
    defined = {
        model_id: define(model_id, layers.of(model_id, _own(known.get(model_id)))) for model_id in [*known, *sections]
    }
    hidden = {hit.id for name in sections for hit in _stood_for(defined[name], cached)} - sections.keys()
    taken = {*defined, *(alias for model in found for alias in model.aliases)}
    models: list[Found] = []
    for model_id, definition in sorted(defined.items(), key=lambda item: (item[0] not in sections, item[0])):
        model = known.get(model_id) or Found(id=model_id, source="preset", files=())
        aliases = _free(definition.aliases if model_id in sections else (), model_id, taken, notes)
        found_at = placed(model, definition, cache)
        models.append(
            structs.replace(
                found_at,
                source="preset" if model_id in sections else model.source,
                aliases=(*model.aliases, *aliases),
                definition=definition,
                hidden=model_id in hidden,
            )
        )
    return models


def _by_id(layers: Layers, found: Iterable[Found]) -> Layers:
    """A section may also have llama-server's name for a sharded model: its first file, which is an alias here."""
    ids = {alias: model.id for model in found for alias in model.aliases}
    sections = {ids.get(name, name): choices for name, choices in layers.presets.sections.items()}
    return structs.replace(layers, presets=structs.replace(layers.presets, sections=sections))


def _own(model: Found | None) -> Choices:
    """Return the options for a model's files. A cached model goes by its name, as in llama-server."""
    if model is None:
        return NONE
    said = [(REPO, model.id)] if model.source == "cache" else [(MODEL, path) for path in model.files[:1]]
    if model.source != "cache":
        said += [(name, path) for name, path in ((PROJECTOR, model.mmproj), (DRAFT, model.draft)) if path]
    origin = model.source.replace("_", " ")
    files = {name: Choice(name=name, words=(name, text), text=text, origin=origin) for name, text in said}
    return files | dict(from_words(model.args, origin))


def _stood_for(definition: Definition, cached: Sequence[Found]) -> Iterator[Found]:
    """Return the cached models of a preset's repositories."""
    if definition.dedup:
        for repo, file in ((definition.repo, definition.repo_file), (definition.draft_repo, "")):
            if hit := _in_cache(repo, file, cached):
                yield hit


def _in_cache(name: str, file: str, cached: Iterable[Found]) -> Found | None:
    """Return the cached model that llama-server's ``--hf-repo`` and ``--hf-file`` would take."""
    repo, _, tag = name.partition(":")
    hits = [model for model in cached if model.repo == repo]
    if file:
        return next((model for model in hits if Path(model.files[0]).as_posix().endswith(f"/{file}")), None)
    if tag:
        return next((model for model in hits if model.tag == tag.upper()), None)
    return prefer([(model.tag, model) for model in hits], QUANTISATIONS)


def _free(aliases: Iterable[str], model_id: str, taken: set[str], notes: list[str]) -> tuple[str, ...]:
    """Return the aliases that do not belong to another model already."""
    free: list[str] = []
    for alias in aliases:
        if alias in taken:
            notes.append(f"model '{model_id}' does not get the alias '{alias}', which is another model's name")
        else:
            taken.add(alias)
            free.append(alias)
    return tuple(free)
