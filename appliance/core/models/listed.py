"""A model in the lists that clients get: llama-server's router's words, llama-swap's, and those of its event feed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType, field


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

    What is unset is left out of the list.
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
