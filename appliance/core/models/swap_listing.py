"""llama-swap's description of models in ``/v1/models``, ``/running`` and its event feed. Source: llama-swap 0bdb3720.

An entry is llama-server's router's with llama-swap's keys added: ``name``, ``description``, ``meta.llamaswap``, and
what ``capabilities`` say. Names that stand for a model elsewhere (peers, selectors, profile pins) also get an entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from appliance.core.config.types import Capabilities, Config, ModelConfig, Selector
from appliance.core.models.context import asked_context
from appliance.core.models.model import Model
from appliance.core.secrets import without_secret_values

Object = dict[str, object]
SwapState = Literal["stopped", "starting", "ready", "stopping"]

UNLOADED = "unloaded"
RUNNING = ("loading", "loaded", "sleeping")
_SWAP_STATES: dict[str, SwapState] = {
    "queued": "starting",
    "loading": "starting",
    "loaded": "ready",
    "sleeping": "ready",
    "stopping": "stopping",
}
NO_CAPABILITIES = Capabilities()
_FROM_CAPABILITIES = ("architecture", "capabilities", "supported_parameters", "context_length")


class ListedStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``status`` of a model in a list. A name without a process of its own has nothing but a ``value``."""

    value: str
    args: Sequence[str] | UnsetType = UNSET
    engine: str | None = None
    preset: str = ""
    progress: Raw | dict[str, object] | None = None
    paused: bool = False
    """llama-server has no word for a download that pauses, so this stands beside ``value``."""
    queued: bool = False
    """``loading`` without a process so far: requests wait until there is room. llama-server has no word for that."""
    exit_code: int = 0
    failed: bool = False
    error: str | None = None


class ListedModel(Struct, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """One name in ``GET /v1/models``, in the words of llama-server's router, and llama-swap's beside them.

    Members that are unset are left out of the list.
    """

    id: str
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    aliases: Sequence[str] = ()
    tags: Sequence[str] = ()
    owned_by: str = "llamacpp"
    created: int
    """When its file was made, or else the time of the answer. Unix seconds."""
    status: ListedStatus
    architecture: dict[str, object] | UnsetType = UNSET
    source: str
    can_remove: bool = False
    identity: str | UnsetType = UNSET
    """See `core.models.identity`. Boxes of a pool compare it."""
    meta: dict[str, object] | UnsetType = UNSET
    capabilities: dict[str, bool] | UnsetType = UNSET
    supported_parameters: Sequence[str] | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    """Tokens of one request: what a slot has, else what a start asks for, else what the model was trained for."""
    max_model_len: int | UnsetType = UNSET
    """The same, where clients of vLLM look."""


class ListedModels(Struct, frozen=True, tag_field="object", tag="list"):
    """``GET /v1/models``."""

    data: list[ListedModel]


class ModelStatus(Struct, frozen=True, kw_only=True):
    """One model in ``modelStatus`` of llama-swap's event feed."""

    id: str
    name: str = ""
    description: str = ""
    state: str
    unlisted: bool = False
    peer_id: str = field(default="", name="peerID")
    aliases: Sequence[str] | UnsetType = UNSET
    capabilities: dict[str, bool] | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


def swap_state(state: str) -> SwapState:
    """llama-swap's word for the state of a process."""
    return _SWAP_STATES.get(state, "stopped")


def with_found(config: Config | None, found: Iterable[Model]) -> Config:
    """The configuration with the models that were found on disk beside it, so that one list has all there is."""
    config = config or Config()
    others = {
        m.id: ModelConfig(aliases=list(m.aliases), capabilities=Capabilities(context=asked_context(m.info, m.args)))
        for m in found
        if m.id not in config.models
    }
    return replace(config, models={**others, **config.models})


class _Rendered(Struct, frozen=True):
    """A model's ``capabilities`` in a listing; all empty if none are configured."""

    architecture: Object = {}
    flags: dict[str, bool] = {}
    context: int = 0


def _render(told: Capabilities) -> _Rendered:
    if told == NO_CAPABILITIES:
        return _Rendered()
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

    def to(self, entry: ListedModel) -> ListedModel:
        """The entry with it; the engine's own values under ``meta`` and ``architecture`` stays beside."""
        architecture = {**(entry.architecture or {}), **self.architecture} or UNSET
        return replace(entry, **self.own, architecture=architecture, meta={**(entry.meta or {}), **self.meta})


def _added(model: ModelConfig, identity: Object, renamed: Object | None = None) -> _Added:
    rendered = _render(model.capabilities)
    told = model.capabilities != NO_CAPABILITIES
    metadata = {key: value for key, value in model.metadata.items() if not (told and key in _FROM_CAPABILITIES)}
    own: Object = {
        "name": model.name.strip() or UNSET,
        "description": model.description.strip() or UNSET,
        "capabilities": rendered.flags or UNSET,
        "supported_parameters": ("tools", "tool_choice") if rendered.flags.get("function_calling") else UNSET,
        **({"context_length": rendered.context, "max_model_len": rendered.context} if rendered.context else {}),
        **(renamed or {}),
    }
    context: Object = {"n_ctx": rendered.context} if rendered.context else {}
    return _Added(own, rendered.architecture, {"llamaswap": {**without_secret_values(metadata), **identity}, **context})


class ModelLister:
    """Lists models under one configuration, peers' models included. Immutable; made once, used for every list."""

    def __init__(self, config: Config, boxes: Collection[str] = (), apart: Collection[str] = ()) -> None:
        """``boxes`` are the peers that are boxes of the pool: their models are listed by their own names, but for those
        ``apart`` (``BOX/MODEL``), whose name means another model as well.
        """
        self._config = config
        self._boxes = frozenset(boxes)
        self._apart = frozenset(apart)
        self._added = {model_id: _names_of(model_id, model, config) for model_id, model in config.models.items()}
        self._full = {f"{peer_id}/{name}": (peer_id, name) for peer_id, name in _peer_models(config)}
        self._ids = {alias: model_id for model_id, model in config.models.items() for alias in model.aliases}
        self._ids |= {name: name for name in (*self._full, *config.models)}

    def entries(
        self, base: Mapping[str, ListedModel], *, profile: str | None, now: int, remote: Collection[str] = ()
    ) -> list[ListedModel]:
        """The ``data`` of ``GET /v1/models``, sorted by id.

        ``base`` is llama-server's entry of every local model by id, its ``status`` included; one that the configuration
        does not know stays as it is. ``remote`` are the full names (``peer/model``) of those that a peer has loaded.
        ``now`` is ``created`` of what has no file, Unix seconds.
        """
        found: list[ListedModel] = []
        for model_id, entry in base.items():
            added = self._added.get(model_id)
            if added is None:
                listed = entry.aliases if self._config.include_aliases_in_list else ()
                found += [entry, *(replace(entry, id=alias, aliases=()) for alias in listed)]
            else:
                found += [one.to(entry) for one in added]
        loaded = {name for name in self._full if name in remote}
        loaded |= {name for name, entry in base.items() if entry.status.value in RUNNING}

        def value(names: Iterable[str]) -> str:
            """``loaded`` when one of them is loaded, or on its way there."""
            ids = (name if name in base else self._ids.get(name, "") for name in names)
            return "loaded" if any(model_id in loaded for model_id in ids) else UNLOADED

        of_boxes: dict[str, list[tuple[str, str]]] = {}
        for full, (peer_id, name) in self._full.items():
            if peer_id in self._boxes and full not in self._apart:
                of_boxes.setdefault(name, []).append((full, peer_id))
                continue
            identity: Object = {"type": "peer", "peerID": peer_id}
            found.append(_virtual(full, "peer", now, value((full,)), identity, f"{peer_id}: {name}"))
        for name, places in of_boxes.items():
            if name not in base and name not in self._config.selectors:
                identity = {"type": "peer", "peerID": places[0][1], "boxes": [box for _, box in places]}
                found.append(_virtual(name, "peer", now, value([full for full, _ in places]), identity, name))
        for selector_id, selector in self._config.selectors.items():
            used = selector.targets[:1] if selector.strategy == "pin" else selector.targets
            found.append(_selector(selector_id, selector, now, value(used)))
        pins = self._config.profiles[profile].pins if profile in self._config.profiles else {}
        for name, target in pins.items():
            if target and not (name in self._config.selectors or name in self._ids or name in base):
                found.append(_virtual(name, "profile", now, value((target,)), {"type": "profile"}))
        return sorted(found, key=lambda entry: entry.id)


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
        found += [_added(model, identity, {"id": alias, "aliases": ()}) for alias in model.aliases]
    return found


def model_status(config: Config, states: Mapping[str, str]) -> list[ModelStatus]:
    """``modelStatus`` of the event feed: local models sorted by id, then peers' with an empty state.

    ``states`` are the program's words by model id; a model that is missing is stopped.
    """
    local = [_status(model_id, model, states.get(model_id, "")) for model_id, model in sorted(config.models.items())]
    peers = [ModelStatus(id=f"{peer_id}/{name}", state="", peer_id=peer_id) for peer_id, name in _peer_models(config)]
    return local + peers


def _peer_models(config: Config) -> list[tuple[str, str]]:
    """``(peer id, model name)`` of all peers, in the order of the file."""
    return [(peer_id, name) for peer_id, peer in config.peers.items() for name in peer.models]


def _selector(selector_id: str, selector: Selector, now: int, value: str) -> ListedModel:
    identity: Object = {"type": "selector", "strategy": selector.strategy, "targets": list(selector.targets)}
    if selector.strategy == "spillover":
        identity["spillover"] = selector.settings.spillover
    return _virtual(selector_id, "selector", now, value, identity, selector.name, selector.description)


def _virtual(
    name_in_list: str,
    source: str,
    now: int,
    value: str,
    identity: Object,
    name: str = "",
    description: str = "",
) -> ListedModel:
    """The entry of a name that has no process of its own here."""
    return ListedModel(
        id=name_in_list,
        name=name.strip() or UNSET,
        description=description.strip() or UNSET,
        created=now,
        status=ListedStatus(value=value),
        source=source,
        meta={"llamaswap": identity},
    )


def _status(model_id: str, model: ModelConfig, state: str) -> ModelStatus:
    rendered = _render(model.capabilities)
    return ModelStatus(
        id=model_id,
        name=model.name,
        description=model.description,
        state=swap_state(state),
        unlisted=model.unlisted or model.disabled,
        aliases=model.aliases or UNSET,
        capabilities=rendered.flags or UNSET,
        context_length=rendered.context or UNSET,
    )
