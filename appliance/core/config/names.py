"""Every name a client may use, who it belongs to, and the rules that keep names apart.

Names are models and their aliases, selectors, and models of peers: ``peer/model`` always, and ``model`` alone,
which may be several peers'. Each section has its own check; two of them also return the section as it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import structs

from appliance.core.config.nodes import ProblemReport
from appliance.core.config.scalars import why_no_base_url
from appliance.core.config.types import Config, ModelConfig, Profile, Selector
from appliance.core.near_names import did_you_mean


class NameTable:
    """Looks names up in a configuration whose models have their aliases already."""

    def __init__(self, config: Config) -> None:
        self.models = config.models
        self.aliases = {alias: id for id, model in sorted(config.models.items()) for alias in model.aliases}
        self.selectors = config.selectors
        full = {(peer, model): f"{peer}/{model}" for peer, known in config.peers.items() for model in known.models}
        owners = Counter(model for _, model in full)
        self.peer_models = set(full.values())
        self.bare = {model: name if owners[model] == 1 else model for (_, model), name in full.items()}
        self.open_peers = tuple(f"{peer}/" for peer, known in config.peers.items() if not known.models)

    def local(self, name: str) -> str | None:
        """The id of a model of this machine, by id or alias; ids win."""
        return name if name in self.models else self.aliases.get(name)

    def real(self, name: str) -> str | None:
        """Return the meaning of a name: a model's id, a peer's full name, or a bare one that several peers have.

        A peer that lists no models may have any.
        """
        if (id := self.local(name)) is not None:
            return id
        if name in self.peer_models or name.startswith(self.open_peers):
            return name
        return self.bare.get(name)

    def like(self, name: str) -> str:
        """The end of a message about an unknown name."""
        return did_you_mean(name, [*self.models, *self.aliases, *self.selectors, *self.peer_models, *self.bare])


def normal_aliases(models: Mapping[str, ModelConfig], report: ProblemReport) -> dict[str, ModelConfig]:
    """Each model with the aliases that its ``setParamsByID`` makes. An alias belongs to one model."""
    owners: dict[str, str] = {}
    aliases: dict[str, list[str]] = {}
    for id, model in sorted(models.items()):
        aliases[id] = _explicit_aliases(id, model, models, owners, report)
    for id, model in sorted(models.items()):
        for key in sorted(model.filters.set_params_by_id):
            path = f"models.{id}.filters.setParamsByID.{key}"
            owner = owners.get(key)
            if key == id or owner == id:
                continue
            if key in models:
                report.error(path, f"'{key}' is the id of another model; a variant needs a name of its own")
            elif owner is not None:
                report.error(path, f"'{key}' is already an alias of '{owner}'; a variant needs a name of its own")
            else:
                owners[key] = id
                aliases[id].append(key)
    return {id: structs.replace(model, aliases=aliases[id]) for id, model in models.items()}


def _explicit_aliases(
    id: str, model: ModelConfig, models: Collection[str], owners: dict[str, str], report: ProblemReport
) -> list[str]:
    kept: list[str] = []
    for n, alias in enumerate(model.aliases):
        path = f"models.{id}.aliases[{n}]"
        if not alias:
            report.warn(path, "is empty, and ignored")
        elif (owner := owners.get(alias)) is not None:
            where = "listed twice" if owner == id else f"also an alias of '{owner}'"
            report.error(path, f"'{alias}' is {where}; an alias belongs to one model, once")
        else:
            if alias in models:
                report.warn(path, f"'{alias}' is the id of a model, which wins; this alias is never used")
            owners[alias] = id
            kept.append(alias)
    return kept


def check_aliases(config: Config, names: NameTable, report: ProblemReport) -> None:
    """Check that none hides what the configuration names. Which models a folder has is known later."""
    for name, model in config.aliases.items():
        if not name.strip() or not model.strip():
            report.error(f"aliases.{name}", "has nothing on one side; write NAME: MODEL")
        elif taken := _owner(name, config, names) or (name in names.bare and "a peer's model"):
            report.error(f"aliases.{name}", f"'{name}' is {taken}, which the alias would hide; rename the alias")


def check_peers(config: Config, names: NameTable, report: ProblemReport) -> None:
    """Check base URLs, and that nothing else has a peer's full names. A peer without models is asked for them later."""
    owners: dict[str, str] = {}
    for id, peer in config.peers.items():
        path = f"peers.{id}"
        if not id.strip():
            report.error(path, "a peer needs a name")
        if why := why_no_base_url(peer.proxy):
            report.error(f"{path}.proxy", f"{why}; write the peer's base URL, as in http://192.168.1.23:8080")
        for n, model in enumerate(peer.models):
            here, full = f"{path}.models[{n}]", f"{id}/{model}"
            if not model.strip():
                report.error(here, "is empty; name a model of the peer")
            elif full in owners:
                twice = "listed twice" if owners[full] == id else f"also a model of the peer '{owners[full]}'"
                report.error(here, f"'{full}' is {twice}")
            owners.setdefault(full, id)
            if taken := _owner(full, config, names):
                report.error(here, f"the name '{full}' belongs to this peer, and is also {taken}; rename one of them")


def _owner(name: str, config: Config, names: NameTable) -> str | None:
    if name in names.models:
        return "the id of a model"
    if name in names.aliases:
        return f"an alias of '{names.aliases[name]}'"
    if name in config.selectors:
        return "a selector"
    return next(
        (f"a pin of the profile '{id}'" for id, profile in config.profiles.items() if name in profile.pins), None
    )


def check_selectors(config: Config, names: NameTable, report: ProblemReport) -> None:
    """Check that selectors have names of their own, and targets that exist, each once."""
    for id, selector in config.selectors.items():
        path = f"selectors.{id}"
        if not id.strip():
            report.error(path, "a selector needs a name")
        if (model := names.local(id)) is not None:
            kind = "the id of a model" if model == id else f"an alias of '{model}'"
            report.error(path, f"'{id}' is also {kind}; rename one of them")
        elif id in names.bare:
            report.warn(path, f"a peer also has a model '{id}'; the selector wins, 'PEER/{id}' still reaches the peer")
        if not selector.targets:
            report.error(f"{path}.targets", "is empty; list the models that the selector stands for")
        elif selector.strategy == "meanwhile" and len(selector.targets) == 1:
            report.error(f"{path}.targets", "has nothing that stands in for the first; list a second model")
        seen: dict[str, str] = {}
        for n, target in enumerate(selector.targets):
            _check_target(f"{path}.targets[{n}]", target, selector, names, report)
            if (real := names.real(target)) is None:
                continue
            if real in seen:
                same = f"'{target}'" if seen[real] == target else f"'{seen[real]}' and '{target}'"
                report.error(f"{path}.targets[{n}]", f"{same}: the same model twice; leave one out")
            seen.setdefault(real, target)


def _check_target(path: str, target: str, selector: Selector, names: NameTable, report: ProblemReport) -> None:
    if target in names.selectors:
        report.error(path, f"'{target}' is a selector; name the models that it stands for")
    elif names.real(target) is None:
        report.error(path, f"there is no model '{target}'{names.like(target)}")
    elif names.local(target) is not None or selector.strategy == "pin":
        return
    elif selector.strategy != "meanwhile":
        report.error(
            path, f"'{target}' is a peer's; the strategy {selector.strategy} knows models of this machine only"
        )
    elif target == selector.targets[0]:
        report.error(path, f"'{target}' is a peer's; the strategy meanwhile loads its first target: name a model here")


def normal_profiles(config: Config, names: NameTable, report: ProblemReport) -> dict[str, Profile]:
    """Pins to names that exist; an empty pin is null."""
    profiles: dict[str, Profile] = {}
    for id, profile in config.profiles.items():
        path = f"profiles.{id}"
        if not id.strip():
            report.error(path, "a profile needs a name")
        if not profile.pins:
            report.error(f"{path}.pins", "is empty; pin at least one name, as in 'pins: {gpt-4o: my-model}'")
        for name, target in profile.pins.items():
            here = f"{path}.pins.{name}"
            if not name.strip():
                report.error(here, "a pin needs the name that it replaces")
            if target and target not in names.selectors and names.real(target) is None:
                report.error(here, f"there is no model '{target}'{names.like(target)}")
        profiles[id] = structs.replace(profile, pins={name: target or None for name, target in profile.pins.items()})
    return profiles
