"""The rules of aliases, and of the one model for names that mean nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from appliance.core.config.types import Config
from appliance.core.models.model import Model
from appliance.core.models.names import HUBS, ModelNames, Named, is_speakable
from appliance.core.near_names import did_you_mean
from appliance.errors import UsageError

GENERATE = ("/completions", "/completion", "/infill", "/messages", "/responses")
"""Ends of routes that answer in text; each has several prefixes."""
MEASURE = ("/input_tokens", "/count_tokens", "/apply-template", "/tokenize")
"""Ends of routes that only measure a chat: the model that answers it has to measure it."""


def read_aliases(words: Sequence[str]) -> dict[str, str]:
    """Return the names of ``NAME=MODEL``, with their models. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, model = (part.strip() for part in word.partition("="))
        if not equals or not model or not is_speakable(name):
            raise UsageError(f"--alias {word!r} cannot be read; write --alias NAME=MODEL")
        if found.setdefault(name, model) != model:
            raise UsageError(f"--alias gives '{name}' to '{found[name]}' and to '{model}'; leave one of them out")
    return found


def hidden_name(aliases: Mapping[str, str], models: Collection[str]) -> str | None:
    """Return what is wrong with the first alias that is the id of another model; None if there is no such alias."""
    for name, model in aliases.items():
        if name in models and name != model:
            return (
                f"the alias '{name}' for '{model}' would hide a model whose real name is '{name}'; "
                "give the alias another name, or rename the model"
            )
    return None


def with_aliases(
    models: Iterable[Model], aliases: Mapping[str, str], others: Collection[str] = ()
) -> tuple[list[Model], list[str]]:
    """Return the models with their aliases, and notes on those that do nothing.

    A model is named by its id, by another of its names, or by its repository. ``others`` are names that mean something
    elsewhere (selectors, models of peers): no alias can stand for these.
    """
    listed = list(models)
    names = ModelNames(Named(model.id, model.aliases, model.hf_repo, model.tag) for model in listed)
    ids = {model.id for model in listed}
    taken = {alias for model in listed for alias in model.aliases}
    given: dict[str, list[str]] = {}
    notes: list[str] = []
    for name, model in aliases.items():
        found = names.find(model)
        if (why := hidden_name({name: model}, ids)) is not None:
            notes.append(f"{why}; until then the alias is ignored")
        elif found is None and model in others:
            notes.append(f"the alias '{name}' is ignored: '{model}' is not on this machine; write a selector for it")
        elif found is None:
            notes.append(
                f"the alias '{name}' is ignored: there is no model '{model}'{did_you_mean(model, sorted(ids))}"
            )
        elif name not in taken and name not in ids:
            given.setdefault(found, []).append(name)
    return [
        structs.replace(model, aliases=(*model.aliases, *given[model.id])) if model.id in given else model
        for model in listed
    ], notes


def takes_fallback(name: str, route: str, config: Config) -> bool:
    """Return whether a request on a route may get another model than it names, where the name means nothing.

    Vectors of another model would be of no use, and neither would a rank. A name that a profile switches off means
    just that. A name that looks like a download gets the advice how that comes here: a repository, if requests may
    download, else one of a hub or of GGUF files.
    """
    if not route.endswith((*GENERATE, *MEASURE)) or any(name in each.pins for each in config.profiles.values()):
        return False
    folded, downloads = name.casefold(), config.auto_download in ("allow", "ask")
    return "/" not in name or not (downloads or "gguf" in folded or folded.startswith((*HUBS, "docker.io/")))
