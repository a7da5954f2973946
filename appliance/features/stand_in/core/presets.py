"""The meaning of model presets: the options of each model, the precedence of their sources, and what they amount to.

Strongest first: the command line, the model's own section, what its files call for, ``[*]``, the environment. The rules
are those of llama.cpp b11434's router.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem
from appliance.core.llama import flags
from appliance.core.models.model import ModelPreset
from appliance.core.models.names import is_speakable
from appliance.features.stand_in.core.preset_file import (
    DEDUP,
    DEFAULT,
    ENGINE,
    EVERYWHERE,
    FRONTS_OWN,
    LOAD_ON_STARTUP,
    NONE,
    NOT_FROM_STRANGERS,
    STOP_TIMEOUT,
    Choices,
    EffectiveOption,
    PresetSection,
    Setting,
    canonical,
    parse,
    read_key,
)

IGNORED = "version"  # a key that llama-server ignores
WHERE_FROM = canonical(("--model", "--model-url", "--hf-repo", "--hf-file", "--docker-repo"))
"""A layer with one of these options says where the model is; weaker layers no longer count for that."""

_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)\Z")
MODEL = "--model"
PROJECTOR = "--mmproj"
DRAFT = "--model-draft"
REPO = "--hf-repo"
REPO_FILE = "--hf-file"
DRAFT_REPO = "--hf-repo-draft"
URL = "--model-url"
PROJECTOR_URL = "--mmproj-url"
IMAGE = "--docker-repo"
ALIAS = "--alias"
TAGS = "--tags"
NO_FLAGS = frozenset((MODEL, PROJECTOR, DRAFT, REPO, REPO_FILE, DRAFT_REPO, URL, PROJECTOR_URL, IMAGE, ALIAS, TAGS))
"""Choices with a field of their own in `Definition`. (The names are llama-server's own, see `EffectiveOption.name`.)"""
FILES = "files"  # the layer of options that the model's own files need
EVERY_MODEL = "[*]"


class Presets(Struct, frozen=True, kw_only=True):
    """A parsed file: ``[*]``, and every other section by the name of its model."""

    everywhere: Choices = NONE
    sections: Mapping[str, Choices] = MappingProxyType({})


class Layers(Struct, frozen=True, kw_only=True):
    """All settings for options of models, apart from those that their files need."""

    environment: Choices = NONE
    presets: Presets = Presets()
    command: Choices = NONE

    def of(self, model_id: str, own: Choices = NONE) -> Choices:
        """Return the choices that count for one model; ``own`` are those that its files need."""
        section = self.presets.sections.get(model_id, NONE)
        return _stacked(self.environment, self.presets.everywhere, own, section, self.command)


def _stacked(*layers: Choices) -> Choices:
    """Later layers win."""
    result: dict[str, EffectiveOption] = {}
    for layer in layers:
        if not WHERE_FROM.isdisjoint(layer):
            result = {name: choice for name, choice in result.items() if name not in WHERE_FROM}
        result |= layer
    return result


def listed(choices: Choices, name: str) -> tuple[str, ...]:
    """Split a comma-separated value as llama-server does for names: sorted, each once, without blanks around."""
    choice = choices.get(name)
    parts = [part.strip() for part in choice.text.split(",")] if choice else []
    return tuple(sorted({part for part in parts if part}))


def read_presets(text: str, file: str, *, strange: bool = False) -> tuple[Presets, list[Problem]]:
    """Parse a file. All mistakes and oddities are in the problems; with an error the presets must not be used.

    ``strange``: the file is from a stranger, and may not name files or servers.
    """
    sections, problems = parse(text, file)
    understood: dict[str, Choices] = {}
    places: dict[str, Position] = {}
    for section in sorted(sections, key=lambda section: section.name):
        name = canonical_name(section.name)
        if name == DEFAULT and all(setting.key == IGNORED for setting in section.settings):
            continue
        if not is_speakable(name):
            problems.append(Problem(message=f"{name!r} cannot be a model's name; choose a plain one", at=section.at))
        if name in understood:
            message = f"[{section.name}] is the same model as the section in line {places[name].line}, and replaces it"
            problems.append(Problem(message=message, at=section.at, level="warning"))
        understood[name], places[name] = _understand(section, problems, strange), section.at
    everywhere = understood.pop(EVERYWHERE, NONE)
    problems += _clashes(everywhere, understood, places)
    ordered = sorted(problems, key=lambda problem: problem.at or Position(file, 0, 0))
    return Presets(everywhere=everywhere, sections=understood), ordered


def canonical_name(name: str) -> str:
    """Return llama-server's own form of a name: the part after the last colon is a quantisation tag, in capitals."""
    repo, colon, tag = name.rpartition(":")
    if not colon:
        return name
    found = _TAG.search(tag)
    return f"{repo}:{(found[1] if found else tag).upper()}"


def _understand(section: PresetSection, problems: list[Problem], strange: bool) -> Choices:
    """llama-server sorts keys by their letters: of two spellings of an option the later one in the alphabet counts."""

    def tell(message: str, setting: Setting, level: Literal["error", "warning"] = "warning") -> None:
        problems.append(Problem(message=message, path=f"[{section.name}]", at=setting.at, level=level))

    choices: dict[str, EffectiveOption] = {}
    said_by: dict[str, Setting] = {}
    last = {setting.key: setting for setting in section.settings}
    for key, setting in sorted(last.items()):
        if key == IGNORED:
            continue
        choice = read_key(key, setting.value, f"{setting.at.file}:{setting.at.line}")
        if isinstance(choice, str):
            tell(choice, setting, "error")
        elif strange and choice.name in NOT_FROM_STRANGERS:
            advice = "to trust the file, give it with --models-preset"
            tell(f"{key} is not taken from a repository; {advice}", setting, "error")
        elif choice.name in FRONTS_OWN:
            tell(f"{key} is for the server, not for a model, and is ignored; give it on the command line", setting)
        else:
            if before := said_by.get(choice.name):
                tell(f"{key} and {before.key} in line {before.at.line} are one option; this one counts", setting)
            choices[choice.name], said_by[choice.name] = choice, setting
    for setting in section.settings:
        if (counts := last[setting.key]) is not setting:
            tell(f"{setting.key} is repeated in line {counts.at.line}, which counts; remove one", setting)
    return choices


def _clashes(everywhere: Choices, sections: Mapping[str, Choices], places: Mapping[str, Position]) -> list[Problem]:
    """A name may stand for one model only."""
    owners = dict(zip(sections, sections, strict=True))
    problems: list[Problem] = []
    for name, choices in sections.items():
        for alias in listed(_stacked(everywhere, choices), "--alias"):
            if (owner := owners.setdefault(alias, name)) != name:
                what = f"the alias '{alias}' is also the name or an alias of model '{owner}'; give it to one of them"
                problems.append(Problem(message=what, path=f"[{name}]", at=places[name]))
    return problems


class Definition(ModelPreset, frozen=True, kw_only=True):
    """One model as presets, command line and environment define it. Paths are as written, "" for none."""

    aliases: tuple[str, ...] = ()
    model: str = ""
    mmproj: str = ""
    draft: str = ""
    repo: str = ""  # ``org/repo`` or ``org/repo:TAG`` on Hugging Face
    repo_file: str = ""
    draft_repo: str = ""
    image: str = ""  # in a registry of container images
    url: str = ""  # the address of a file, which is stored at ``model`` if that is set
    mmproj_url: str = ""
    projector: bool = True  # use a projector that is found beside the model
    args: tuple[str, ...] = ()  # the engine's flags, without those that say where the files are
    dedup: bool = False  # do not list the cached models that this one stands for


def define(model_id: str, choices: Choices) -> Definition:
    """Sum up the choices for a model."""

    def place(choice: EffectiveOption) -> str:
        """llama-server's order: by the first spelling, its router's own keys last."""
        flag = flags.lookup(choice.name)
        return flag.spellings[0] if flag is not None else choice.name

    def text(name: str) -> str:
        return choices[name].text if name in choices else ""

    def is_on(name: str, *, unsaid: bool = False) -> bool:
        return choices[name].on if name in choices else unsaid

    ordered = sorted(choices.values(), key=place)
    stop = choices.get(STOP_TIMEOUT)
    return Definition(
        aliases=tuple(alias for alias in listed(choices, ALIAS) if alias != model_id),
        tags=listed(choices, TAGS),
        model=text(MODEL),
        mmproj=text(PROJECTOR),
        draft=text(DRAFT),
        repo=text(REPO),
        repo_file=text(REPO_FILE),
        draft_repo=text(DRAFT_REPO),
        image=text(IMAGE),
        url=text(URL),
        mmproj_url=text(PROJECTOR_URL),
        projector=is_on("--mmproj-auto", unsaid=True),
        args=tuple(word for choice in ordered if choice.name not in NO_FLAGS for word in choice.words),
        load_on_startup=is_on(LOAD_ON_STARTUP),
        stop_timeout=float(stop.text) if stop is not None else None,
        engine=text(ENGINE),
        dedup=is_on(DEDUP),
        preset=_ini(model_id, ordered),
        origins=tuple((choice.name, choice.origin) for choice in ordered),
    )


def _ini(model_id: str, choices: Iterable[EffectiveOption]) -> str:
    lines = [f"{choice.name.lstrip('-')} = {choice.text}" for choice in choices if choice.name not in (ALIAS, TAGS)]
    return "".join(f"{line}\n" for line in (f"[{model_id}]", *lines, ""))


class SourcedValue(Struct, frozen=True, kw_only=True):
    """A value and its source. ``layer``: ``command line``, ``section``, `FILES`, `EVERY_MODEL` or ``environment``."""

    value: str
    layer: str
    origin: str  # a place in a file, a variable, a flag; for `FILES` the place where the model was found

    @property
    def source(self) -> str:
        return f"{self.layer} ({self.origin})"


class ToldOption(Struct, frozen=True, kw_only=True):
    """One option of a model with its effective value, and the values of weaker layers, strongest first."""

    option: str
    said: SourcedValue
    instead_of: tuple[SourcedValue, ...] = ()


def explain(
    layers: Layers, section: str, origins: Iterable[tuple[str, str]], values: Mapping[str, str]
) -> list[ToldOption]:
    """``section`` is the name of the model's section; ``origins`` and ``values`` are what counts for it."""
    told: list[ToldOption] = []
    for option, origin in origins:
        layered = list(_choices(layers, section, option))
        at = next((number for number, said in enumerate(layered) if said.origin == origin), None)
        if at is None:
            counts = SourcedValue(value=values.get(option, ""), layer=FILES, origin=origin)
            weaker = [said for said in layered if said.layer in (EVERY_MODEL, "environment")]
        else:
            counts, weaker = layered[at], layered[at + 1 :]
        told.append(ToldOption(option=option.lstrip("-"), said=counts, instead_of=tuple(weaker)))
    return told


def _choices(layers: Layers, section: str, option: str) -> Iterator[SourcedValue]:
    """Return the choices of all layers except the files, strongest first."""
    for name, layer in (
        ("command line", layers.command),
        ("section", layers.presets.sections.get(section, NONE)),
        (EVERY_MODEL, layers.presets.everywhere),
        ("environment", layers.environment),
    ):
        if (choice := layer.get(option)) is not None:
            yield SourcedValue(value=choice.text, layer=name, origin=choice.origin)
