"""The meaning of model presets: the options of each model, and the precedence of their sources.

Strongest first: the command line, the model's own section, what its files call for, ``[*]``, the environment. The rules
are those of llama.cpp b11434's router.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem
from appliance.core.naming import is_speakable
from appliance.core.preset_ini import DEFAULT, EVERYWHERE, Section, Setting, parse
from appliance.core.preset_keys import FRONTS_OWN, NONE, NOT_FROM_STRANGERS, Choice, Choices, canonical, read_key

IGNORED = "version"
"""A key that llama-server ignores."""
WHERE_FROM = canonical(("--model", "--model-url", "--hf-repo", "--hf-file", "--docker-repo"))
"""A layer with one of these options says where the model is; weaker layers no longer count for that."""

_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)\Z")


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
    result: dict[str, Choice] = {}
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

    ``strange``: the file comes from somebody else, and may not name files or servers.
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


def _understand(section: Section, problems: list[Problem], strange: bool) -> Choices:
    """llama-server sorts keys by their letters: of two spellings of an option the later one in the alphabet counts."""
    choices: dict[str, Choice] = {}
    said_by: dict[str, Setting] = {}
    last = {setting.key: setting for setting in section.settings}
    for setting in sorted(last.values(), key=lambda setting: setting.key):
        if setting.key == IGNORED:
            continue
        path, at = f"[{section.name}]", setting.at
        choice = read_key(setting.key, setting.value, f"{at.file}:{at.line}")
        if isinstance(choice, str):
            problems.append(Problem(message=choice, path=path, at=at))
        elif strange and choice.name in NOT_FROM_STRANGERS:
            message = f"{setting.key} is not taken from a repository; to trust the file, give it with --models-preset"
            problems.append(Problem(message=message, path=path, at=at))
        elif choice.name in FRONTS_OWN:
            message = f"{setting.key} is for the server, not for a model, and is ignored; give it on the command line"
            problems.append(Problem(message=message, path=path, at=at, level="warning"))
        else:
            if before := said_by.get(choice.name):
                message = f"{setting.key} and {before.key} in line {before.at.line} are one option; this one counts"
                problems.append(Problem(message=message, path=path, at=at, level="warning"))
            choices[choice.name], said_by[choice.name] = choice, setting
    problems += _repeated(section, last)
    return choices


def _repeated(section: Section, last: Mapping[str, Setting]) -> list[Problem]:
    return [
        Problem(
            message=f"{setting.key} is repeated in line {last[setting.key].at.line}, which counts; remove one",
            path=f"[{section.name}]",
            at=setting.at,
            level="warning",
        )
        for setting in section.settings
        if last[setting.key] is not setting
    ]


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
