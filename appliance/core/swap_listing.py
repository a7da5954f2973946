"""What llama-swap tells of models in ``/v1/models``, ``/running`` and its event feed. Source: llama-swap 0bdb3720.

An entry is llama-server's router's with llama-swap's keys added: ``name``, ``description``, ``meta.llamaswap``, and
what ``capabilities`` say. Names that stand for a model elsewhere (peers, selectors, profile pins) get an entry, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from appliance.core.config.types import Capabilities, Config, ModelConfig, Profile, Selector
from appliance.core.model import Model

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
    """What a model's ``capabilities`` become in a listing; all empty when none are configured."""

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


def _render(told: Capabilities) -> _Rendered:
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


def complete(entry: Object, model: ModelConfig, identity: Object) -> Object:
    """A model's entry of the list with all that its configuration adds. ``identity`` goes into ``meta.llamaswap``."""
    rendered = _render(model.capabilities).entry
    metadata = {key: value for key, value in model.metadata.items() if not (rendered and key in _FROM_CAPABILITIES)}
    meta: Object = {**_object(entry.get("meta")), "llamaswap": {**metadata, **identity}}
    if model.capabilities.context:
        meta["n_ctx"] = model.capabilities.context
    architecture: Object = {**_object(entry.get("architecture")), **_object(rendered.get("architecture"))}
    return {
        **entry,
        **_named(model.name, model.description),
        **rendered,
        **({"architecture": architecture} if architecture else {}),
        "meta": meta,
    }


def list_entries(
    base: Mapping[str, Object],
    config: Config,
    *,
    profile: str | None,
    now: int,
    remote: Collection[str] = (),
) -> list[Object]:
    """The ``data`` of ``GET /v1/models``, sorted by id.

    ``base`` is llama-server's entry of every local model by id, its ``status`` included; one that the configuration
    does not know stays as it is. ``config`` has the models of peers that list them themselves; ``remote`` are the full
    names (``peer/model``) of those that a peer has loaded. ``now`` is ``created`` of what has no file, Unix seconds.
    """
    found: list[Object] = []
    for model_id, entry in base.items():
        model = config.models.get(model_id)
        if model is None:
            found.append(entry)
        elif not model.unlisted:
            found += _local(entry, model_id, model, aliases=config.include_aliases_in_list)
    states = {model_id: _value(entry) for model_id, entry in base.items()}
    names = _Names(config, states, remote)
    for peer_id, name in _peer_models(config):
        full, identity = f"{peer_id}/{name}", dict[str, object](type="peer", peerID=peer_id)
        found.append(_virtual(full, "peer", now, names.value((full,)), identity, f"{peer_id}: {name}"))
    for selector_id, selector in config.selectors.items():
        found.append(_selector(selector_id, selector, now, names))
    found += _pins(config.profiles.get(profile) if profile is not None else None, now, names)
    return sorted(found, key=lambda entry: str(entry["id"]))


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


class _Names:
    """Which names mean something, and whether it runs."""

    def __init__(self, config: Config, states: Mapping[str, str], remote: Collection[str]) -> None:
        peers = {f"{peer_id}/{name}" for peer_id, name in _peer_models(config)}
        self._states = {**{name: "loaded" for name in peers.intersection(remote)}, **states}
        self._ids = {alias: model_id for model_id, model in config.models.items() for alias in model.aliases}
        self._ids |= {name: name for name in (*peers, *config.models, *states)}
        self.taken = {*self._ids, *config.selectors}

    def value(self, names: Iterable[str]) -> str:
        """``loaded`` when one of them is loaded, or on its way there."""
        states = (self._states.get(self._ids.get(name, ""), UNLOADED) for name in names)
        return "loaded" if any(state in ("loading", "loaded", "sleeping") for state in states) else UNLOADED


def _local(entry: Object, model_id: str, model: ModelConfig, *, aliases: bool) -> list[Object]:
    identity: Object = {"type": "model"}
    if model.aliases:
        identity["aliases"] = list(model.aliases)
    found = [complete(entry, model, identity)]
    if aliases:
        identity = {"type": "alias", "modelID": model_id}
        found += [complete({**entry, "id": alias, "aliases": []}, model, identity) for alias in model.aliases]
    return found


def _selector(selector_id: str, selector: Selector, now: int, names: _Names) -> Object:
    identity: Object = {"type": "selector", "strategy": selector.strategy, "targets": list(selector.targets)}
    if selector.strategy == "spillover":
        identity["spillover"] = selector.settings.spillover
    used = selector.targets[:1] if selector.strategy == "pin" else selector.targets
    value = names.value(used)
    return _virtual(selector_id, "selector", now, value, identity, selector.name, selector.description)


def _pins(profile: Profile | None, now: int, names: _Names) -> list[Object]:
    pins = profile.pins.items() if profile is not None else ()
    return [
        _virtual(name, "profile", now, names.value((target,)), {"type": "profile"})
        for name, target in pins
        if target and name not in names.taken
    ]


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
    entry = _status_entry(model_id, swap_state(state), model.name, model.description, unlisted=model.unlisted)
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


def _value(entry: Object) -> str:
    return str(_object(entry.get("status")).get("value", UNLOADED))


def _object(value: object) -> Object:
    """A part of an entry as a mapping; the engine's own words come as raw JSON."""
    if isinstance(value, Raw):
        return dict(msgspec.json.decode(value, type=dict[str, Raw]))
    return msgspec.convert(value, Object) if isinstance(value, dict) else {}
