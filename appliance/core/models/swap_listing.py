"""llama-swap's description of models in ``/v1/models``, ``/running`` and its event feed. Source: llama-swap 0bdb3720.

An entry is llama-server's router's with llama-swap's keys added: ``name``, ``description``, ``meta.llamaswap``, and
what ``capabilities`` say. Names that stand for a model elsewhere (peers, selectors, profile pins) also get an entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, cast

import msgspec
from msgspec import Raw, Struct

from appliance.core.config.types import Capabilities, Config, ModelConfig, Selector
from appliance.core.models.model import Model

Object = dict[str, object]
SwapState = Literal["stopped", "starting", "ready", "stopping"]

UNLOADED = "unloaded"
_SWAP_STATES: dict[str, SwapState] = {
    "queued": "starting",
    "loading": "starting",
    "loaded": "ready",
    "sleeping": "ready",
    "stopping": "stopping",
}
NO_CAPABILITIES = Capabilities()
_FROM_CAPABILITIES = ("architecture", "capabilities", "supported_parameters", "context_length")


def swap_state(state: str) -> SwapState:
    """llama-swap's word for the state of a process."""
    return _SWAP_STATES.get(state, "stopped")


def with_found(config: Config | None, found: Iterable[Model]) -> Config:
    """The configuration with the models that were found on disk beside it, so that one list has all there is."""
    config = config or Config()
    others = {m.id: ModelConfig(aliases=list(m.aliases)) for m in found if m.id not in config.models}
    return msgspec.structs.replace(config, models={**others, **config.models})


class _Rendered(Struct, frozen=True):
    """A model's ``capabilities`` in a listing; all empty if none are configured."""

    architecture: Object
    flags: dict[str, bool]
    context: int

    @property
    def entry(self) -> Object:
        found: Object = {}
        if self.architecture:
            found["architecture"] = self.architecture
        if self.flags:
            found["capabilities"] = self.flags
        if self.flags.get("function_calling"):
            found["supported_parameters"] = ["tools", "tool_choice"]
        if self.context:
            found["context_length"] = self.context
        return found


_NOTHING = _Rendered({}, {}, 0)


def _render(told: Capabilities) -> _Rendered:
    if told == NO_CAPABILITIES:
        return _NOTHING
    pairs = {
        "audio_transcriptions": ("audio", "text"),
        "audio_speech": ("text", "audio"),
        "image_generation": ("text", "image"),
        "image_to_image": ("image", "image"),
    }
    flags = {"vision": "image" in told.inputs and bool(told.outputs)}
    flags |= {name: taken in told.inputs and given in told.outputs for name, (taken, given) in pairs.items()}
    flags |= {"function_calling": told.tools, "reranker": told.reranker}
    architecture: Object = {}
    if told.inputs:
        architecture["input_modalities"] = list(told.inputs)
    if told.outputs:
        architecture["output_modalities"] = list(told.outputs)
    if told.inputs and told.outputs:
        architecture["modality"] = f"{'+'.join(told.inputs)}->{'+'.join(told.outputs)}"
    return _Rendered(architecture, {name: True for name, on in flags.items() if on}, told.context)


class _Added(Struct, frozen=True):
    """A configuration's additions to a model's entry under one of its names; ``own`` replaces members of the entry."""

    own: Object
    architecture: Object
    meta: Object

    def to(self, entry: Object) -> Object:
        """The entry with it; the engine's own values under ``meta`` and ``architecture`` stays beside."""
        found = {**entry, **self.own}
        found["meta"] = {**_object(entry["meta"]), **self.meta} if "meta" in entry else self.meta
        if self.architecture:
            found["architecture"] = {**_object(entry.get("architecture")), **self.architecture}
        return found


def _added(model: ModelConfig, identity: Object, renamed: Object | None = None) -> _Added:
    rendered = _render(model.capabilities)
    shown = rendered.entry
    metadata = {key: value for key, value in model.metadata.items() if not (shown and key in _FROM_CAPABILITIES)}
    meta: Object = {"llamaswap": {**metadata, **identity}}
    if model.capabilities.context:
        meta["n_ctx"] = model.capabilities.context
    shown.pop("architecture", None)
    own = {**(renamed or {}), **_named(model.name, model.description), **shown}
    return _Added(own, rendered.architecture, meta)


class Listing:
    """Lists models under one configuration, peers' models included. Immutable; made once, used for every list."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._added = {model_id: _names_of(model_id, model, config) for model_id, model in config.models.items()}
        self._full = {f"{peer_id}/{name}": (peer_id, name) for peer_id, name in _peer_models(config)}
        self._ids = {alias: model_id for model_id, model in config.models.items() for alias in model.aliases}
        self._ids |= {name: name for name in (*self._full, *config.models)}

    def entries(
        self, base: Mapping[str, Object], *, profile: str | None, now: int, remote: Collection[str] = ()
    ) -> list[Object]:
        """The ``data`` of ``GET /v1/models``, sorted by id.

        ``base`` is llama-server's entry of every local model by id, its ``status`` included; one that the configuration
        does not know stays as it is. ``remote`` are the full names (``peer/model``) of those that a peer has loaded.
        ``now`` is ``created`` of what has no file, Unix seconds.
        """
        found: list[Object] = []
        for model_id, entry in base.items():
            added = self._added.get(model_id)
            if added is None:
                found.append(entry)
            else:
                found += [one.to(entry) for one in added]
        found += self._virtual(_Loaded(self._ids, base, self._full.keys() & set(remote)), profile, now)
        return sorted(found, key=lambda entry: str(entry["id"]))

    def _virtual(self, loaded: _Loaded, profile: str | None, now: int) -> Iterator[Object]:
        """The entries of names that have no process of their own here."""
        for full, (peer_id, name) in self._full.items():
            identity: Object = {"type": "peer", "peerID": peer_id}
            yield _virtual(full, "peer", now, loaded.value((full,)), identity, f"{peer_id}: {name}")
        for selector_id, selector in self._config.selectors.items():
            yield _selector(selector_id, selector, now, loaded)
        pins = self._config.profiles[profile].pins if profile in self._config.profiles else {}
        for name, target in pins.items():
            if target and name not in self._config.selectors and not loaded.knows(name):
                yield _virtual(name, "profile", now, loaded.value((target,)), {"type": "profile"})


def _names_of(model_id: str, model: ModelConfig, config: Config) -> list[_Added]:
    """Additions to the model's entry under each listed name."""
    if model.unlisted or model.disabled:
        return []
    identity: Object = {"type": "model"}
    if model.aliases:
        identity["aliases"] = list(model.aliases)
    found = [_added(model, identity)]
    if config.include_aliases_in_list:
        identity = {"type": "alias", "modelID": model_id}
        found += [_added(model, identity, {"id": alias, "aliases": []}) for alias in model.aliases]
    return found


def model_status(config: Config, states: Mapping[str, str]) -> list[Object]:
    """``modelStatus`` of the event feed: local models sorted by id, then peers' with an empty state.

    ``states`` are the program's words by model id; a model that is missing is stopped.
    """
    local = [_status(model_id, model, states.get(model_id, "")) for model_id, model in sorted(config.models.items())]
    peers = [_status_entry(f"{peer_id}/{name}", "", peer_id=peer_id) for peer_id, name in _peer_models(config)]
    return local + peers


def _peer_models(config: Config) -> list[tuple[str, str]]:
    """``(peer id, model name)`` of all peers, in the order of the file."""
    return [(peer_id, name) for peer_id, peer in config.peers.items() for name in peer.models]


class _Loaded:
    """Which names mean something, and whether it runs."""

    def __init__(self, ids: Mapping[str, str], base: Mapping[str, Object], remote: Collection[str]) -> None:
        self._ids = ids
        self._base = base
        self._remote = remote

    def knows(self, name: str) -> bool:
        return name in self._ids or name in self._base

    def value(self, names: Iterable[str]) -> str:
        """``loaded`` when one of them is loaded, or on its way there."""
        ids = [name if name in self._base else self._ids.get(name, "") for name in names]
        states = [_object(self._base[one].get("status")).get("value") for one in ids if one in self._base]
        runs = any(state in ("loading", "loaded", "sleeping") for state in states)
        return "loaded" if runs or any(one in self._remote for one in ids if one not in self._base) else UNLOADED


def _selector(selector_id: str, selector: Selector, now: int, loaded: _Loaded) -> Object:
    identity: Object = {"type": "selector", "strategy": selector.strategy, "targets": list(selector.targets)}
    if selector.strategy == "spillover":
        identity["spillover"] = selector.settings.spillover
    used = selector.targets[:1] if selector.strategy == "pin" else selector.targets
    value = loaded.value(used)
    return _virtual(selector_id, "selector", now, value, identity, selector.name, selector.description)


def _virtual(
    name_in_list: str,
    source: str,
    now: int,
    value: str,
    identity: Object,
    name: str = "",
    description: str = "",
) -> Object:
    """The entry of a name that has no process of its own here."""
    return {
        "id": name_in_list,
        **_named(name, description),
        "aliases": [],
        "tags": [],
        "object": "model",
        "owned_by": "llamacpp",
        "created": now,
        "status": {"value": value},
        "source": source,
        "can_remove": False,
        "meta": {"llamaswap": identity},
    }


def _status(model_id: str, model: ModelConfig, state: str) -> Object:
    rendered = _render(model.capabilities)
    entry = _status_entry(
        model_id, swap_state(state), model.name, model.description, unlisted=model.unlisted or model.disabled
    )
    if model.aliases:
        entry["aliases"] = list(model.aliases)
    if rendered.flags:
        entry["capabilities"] = rendered.flags
    if rendered.context:
        entry["context_length"] = rendered.context
    return entry


def _status_entry(
    model_id: str, state: str, name: str = "", description: str = "", *, unlisted: bool = False, peer_id: str = ""
) -> Object:
    return {
        "id": model_id,
        "name": name,
        "description": description,
        "state": state,
        "unlisted": unlisted,
        "peerID": peer_id,
    }


def _named(name: str, description: str) -> Object:
    told = {"name": name.strip(), "description": description.strip()}
    return {key: text for key, text in told.items() if text}


def _object(value: object) -> Object:
    """A part of an entry as a mapping; the engine's own words come as raw JSON."""
    if isinstance(value, Raw):
        return dict(msgspec.json.decode(value, type=dict[str, Raw]))
    return cast("Object", value) if isinstance(value, dict) else {}  # anything else was made here, with names
