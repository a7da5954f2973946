"""Model presets on disk: read, and applied to the models that were found.

The files of a preset's model have their places, and missing ones their downloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, structs

from appliance.catalog.found import FoundModel, all_shards, files_of, here
from appliance.core.config.nodes import Problem
from appliance.core.models.download import (
    PRESET_FILE,
    Remote,
    WantedModel,
    parse_image,
    parse_location,
    read_wanted,
    sidecars_of,
)
from appliance.core.models.file_names import is_meant
from appliance.core.models.hub_address import MAIN
from appliance.core.models.names import QUANTISATIONS, prefer
from appliance.errors import BadRequest, InvalidConfig, UsageError
from appliance.features.stand_in.core.preset_file import NONE, Choices, EffectiveOption, from_words
from appliance.features.stand_in.core.presets import (
    DRAFT,
    DRAFT_REPO,
    IMAGE,
    MODEL,
    PROJECTOR,
    PROJECTOR_URL,
    REPO,
    REPO_FILE,
    URL,
    Definition,
    Layers,
    define,
    read_presets,
)
from appliance.platform.home import expanded
from appliance.store.model_files import read_start

_Need = tuple[Remote, tuple[str, ...]]  # a download, and the options that say the same
COMPANIONS = ("--chat-template-file", "--grammar-file", "--json-schema-file")  # each one file, read by the engine
LARGEST = 4 << 20  # bytes of a preset file; a thousand models take about 100 KB


def placed(model: FoundModel, definition: Definition, cache: Path | None) -> FoundModel:
    """Return the model with its files, or with the downloads into ``cache`` for its first request."""
    model, projector, needs = _model(model, definition, cache)
    if definition.mmproj_url and definition.projector:
        mistake, seeing = _read(lambda: parse_location(definition.mmproj_url, _path(definition.mmproj)))
        if seeing is None:
            model = structs.replace(model, error=model.error or mistake)
        elif cache is not None and (hit := here(cache, seeing)):
            projector = hit.files[0]
        else:
            needs.append((seeing, (PROJECTOR_URL, definition.mmproj_url)))
    draft = definition.draft
    if not draft and definition.draft_repo and (guesses := _draft(definition)):
        if cache is not None and (hit := here(cache, guesses)):
            draft = hit.files[0]
        else:
            needs.append((guesses, (DRAFT_REPO, definition.draft_repo)))
    args = [*definition.args, *(word for _, words in needs for word in words)]
    if needs and "--offline" in args:
        error = f"{needs[0][0]} is not in the cache, and 'offline' forbids downloading it; remove that once"
        model = structs.replace(model, error=model.error or error)
    named = {"mmproj": "" if definition.mmproj_url else definition.mmproj, "model-draft": definition.draft}
    return structs.replace(
        model,
        error=model.error or _missing(named, definition.args),
        args=tuple(args),
        fetch=tuple(wanted for wanted, _ in needs),
        mmproj=_path(projector) if definition.projector else None,
        draft=_path(draft),
    )


def _missing(named: Mapping[str, str], args: Sequence[str]) -> str | None:
    """Return why a model cannot start: a file beside it that its preset names is not there."""
    files = [(name, path) for name, text in named.items() if (path := _path(text))]
    files += [(flag.removeprefix("--"), value) for flag, value in pairwise(args) if flag in COMPANIONS]
    gone = next(((name, path) for name, path in files if not Path(path).is_file()), None)
    return f"its {gone[0]} {gone[1]} does not exist; correct the path, or remove the key" if gone else None


def _model(model: FoundModel, definition: Definition, cache: Path | None) -> tuple[FoundModel, str, list[_Need]]:
    """Return the model with its own files and its projector, or what has to be fetched for it."""
    projector = definition.mmproj
    elsewhere = not definition.repo and bool(definition.image or definition.url)
    if definition.model and not elsewhere:
        path = _path(definition.model)
        if path is not None and path not in model.files[:1]:
            model = FoundModel(id=model.id, source=model.source, files=all_shards(Path(path)))
        return model, projector, []
    if model.source == "cache" and model.files and (definition.repo, definition.repo_file) == (model.id, ""):
        return model, projector or model.mmproj or "", []  # it was just found there
    mistake: str | None = None
    if elsewhere and definition.image:
        mistake, wanted = _read(lambda: parse_image(definition.image))
    elif elsewhere:
        mistake, wanted = _read(lambda: parse_location(definition.url, _path(definition.model)))
    else:
        wanted = _wanted(definition, model.id)
    if wanted is not None and cache is not None and (hit := here(cache, wanted)):
        repo = wanted.reference.repo if isinstance(wanted, WantedModel) and not elsewhere else model.repo
        tag = model.tag if elsewhere else hit.tag
        model = structs.replace(model, files=hit.files, repo=repo, tag=tag, mmproj=None)
        return model, projector or hit.mmproj or "", []
    if elsewhere:
        words = (IMAGE, definition.image) if definition.image else (URL, definition.url)
        return structs.replace(model, files=(), error=mistake), projector, [(wanted, words)] if wanted else []
    if wanted and definition.repo:
        file = (REPO_FILE, definition.repo_file) if definition.repo_file else ()
        return model, projector, [(wanted, (REPO, definition.repo, *file))]
    if not model.files:
        error = f"its preset [{model.id}] does not say which file it is; add model = PATH, or hf-repo = ORG/REPO:TAG"
        model = structs.replace(model, error=error)
    return model, projector, []


def _read(parse: Callable[[], Remote]) -> tuple[str | None, Remote | None]:
    """Return a name's mistake, or its meaning."""
    try:
        return None, parse()
    except (UsageError, BadRequest) as error:
        return str(error), None


def _wanted(definition: Definition, model_id: str) -> WantedModel | None:
    """Return the model of a preset's repository, or its name. None if it does not name a repository."""
    wanted = read_wanted(definition.repo or model_id)
    if wanted is None or wanted.revision != MAIN:
        return None
    projector = definition.projector and not definition.mmproj and not definition.mmproj_url
    return structs.replace(wanted, file=definition.repo_file or wanted.file, projector=projector)


def _draft(definition: Definition) -> WantedModel | None:
    wanted = read_wanted(definition.draft_repo)
    if wanted is None:
        return None
    spec_type = next((value for flag, value in pairwise(definition.args) if flag == "--spec-type"), "")
    return structs.replace(wanted, projector=False, sidecars=sidecars_of(spec_type))


def _path(text: str) -> str | None:
    """llama-server takes paths from its working folder; the home folder's sign is this program's addition."""
    return str((expanded(text) if text.startswith("~/") else Path(text)).absolute()) if text else None


class PresetSource(Struct, frozen=True, kw_only=True):
    """The source of presets, and the options for all models beside them. Made by `open_presets`."""

    file: Path | None
    layers: Layers
    strange: bool = False  # the file comes from a repository, so from somebody else
    cache: Path | None = None

    def signature(self) -> tuple[int, int, int] | None:
        """Changes when the file does; None while there is none."""
        try:
            status = self.file.stat() if self.file is not None else None
        except OSError:
            status = None
        return status and (status.st_ino, status.st_mtime_ns, status.st_size)

    def read(self) -> tuple[PresetSource, list[Problem]]:
        """Read the file again; the problems are warnings. Raises UsageError, InvalidConfig among them."""
        if self.file is None:
            return self, []
        presets, problems = read_presets(read_ini(self.file), str(self.file), strange=self.strange)
        if errors := [problem for problem in problems if problem.level == "error"]:
            raise InvalidConfig(errors)
        return structs.replace(self, layers=structs.replace(self.layers, presets=presets)), problems

    def applied(self, found: Sequence[FoundModel], notes: list[str], cache: Path | None) -> list[FoundModel]:
        """Return the found models with the presets applied, and those that only presets name. Ids are unique."""
        cached = [model for model in found if model.source == "cache"]
        layers = _by_id(self.layers, found)
        sections = layers.presets.sections
        known = {model.id: model for model in found}
        defined = {
            model_id: define(model_id, layers.of(model_id, _own(known.get(model_id))))
            for model_id in [*known, *sections]
        }
        hidden = {hit.id for name in sections for hit in _stood_for(defined[name], cached)} - sections.keys()
        taken = {*defined, *(alias for model in found for alias in model.aliases)}
        models: list[FoundModel] = []
        for model_id, definition in sorted(defined.items(), key=lambda item: (item[0] not in sections, item[0])):
            model = known.get(model_id) or FoundModel(id=model_id, source="preset", files=())
            aliases = _free(definition.aliases if model_id in sections else (), model_id, taken, notes)
            models.append(
                structs.replace(
                    placed(model, definition, cache),
                    source="preset" if model_id in sections else model.source,
                    aliases=(*model.aliases, *aliases),
                    definition=definition,
                    hidden=model_id in hidden,
                )
            )
        return models


def open_presets(
    file: Path | None,
    *,
    environment: Choices = NONE,
    command: Choices = NONE,
    strange: bool = False,
    cache: Path | None = None,
) -> tuple[PresetSource, list[Problem]]:
    """Read presets for the first time; the problems are warnings. Raises UsageError, InvalidConfig among them."""
    layers = Layers(environment=environment, command=command)
    file = file.absolute() if file is not None else None
    return PresetSource(file=file, layers=layers, strange=strange, cache=cache).read()


def preset_file(root: Path, repo: str) -> Path | None:
    """Return the presets that a cached repository (``org/repo``) holds instead of a model; None if it holds none."""
    found = files_of(root, repo)
    return found[0] / PRESET_FILE if found is not None and any(file.path == PRESET_FILE for file in found[1]) else None


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


def _by_id(layers: Layers, found: Iterable[FoundModel]) -> Layers:
    """A section may also have llama-server's name for a sharded model: its first file, which is an alias here."""
    ids = {alias: model.id for model in found for alias in model.aliases}
    sections = {ids.get(name, name): choices for name, choices in layers.presets.sections.items()}
    return structs.replace(layers, presets=structs.replace(layers.presets, sections=sections))


def _own(model: FoundModel | None) -> Choices:
    """Return the options for a model's files. A cached model goes by its name, as in llama-server."""
    if model is None:
        return NONE
    said = [(REPO, model.id)] if model.source == "cache" else [(MODEL, path) for path in model.files[:1]]
    if model.source != "cache":
        said += [(name, path) for name, path in ((PROJECTOR, model.mmproj), (DRAFT, model.draft)) if path]
    origin = model.source.replace("_", " ")
    files = {name: EffectiveOption(name=name, words=(name, text), text=text, origin=origin) for name, text in said}
    return files | dict(from_words(model.args, origin))


def _stood_for(definition: Definition, cached: Sequence[FoundModel]) -> Iterator[FoundModel]:
    """Return the cached models of a preset's repositories."""
    if definition.dedup:
        for repo, file in ((definition.repo, definition.repo_file), (definition.draft_repo, "")):
            if hit := _in_cache(repo, file, cached):
                yield hit


def _in_cache(name: str, file: str, cached: Iterable[FoundModel]) -> FoundModel | None:
    """Return the cached model that llama-server's ``--hf-repo`` and ``--hf-file`` would take."""
    repo, _, tag = name.partition(":")
    hits = [model for model in cached if model.repo == repo]
    if file:
        return next((model for model in hits if Path(model.files[0]).as_posix().endswith(f"/{file}")), None)
    if tag:
        exact = (model for model in hits if model.tag == tag.upper())
        longer = (model for model in hits if is_meant(tag.upper(), model.tag, Path(model.files[0]).name))
        return next(exact, None) or next(longer, None)
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
