"""The shapes that cross a boundary, as msgspec Structs.

Refuses behaviour.

Field names of the activity log are llama-swap's (0bdb3720). Answers of the Hugging Face hub and of container registries
are described as far as they are read (https://huggingface.co/docs/hub/api; OCI distribution specification 1.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import UNSET, Raw, Struct, UnsetType, field


class Trouble(Struct, frozen=True, kw_only=True):
    """Something that a person has to mend. ``id`` stays the same as long as it is the same trouble."""

    id: str
    text: str
    fix: str


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


class RemovedModel(Struct, frozen=True, kw_only=True):
    """The removed model. ``size`` is the number of bytes freed."""

    model: str
    paths: tuple[str, ...]
    size: int


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


class Tokens(Struct, frozen=True, kw_only=True):
    """The cost of one answer. -1 is unknown; a failed request has zeros (``NO_TOKENS``)."""

    cache_tokens: int = -1
    draft_tokens: int = -1
    draft_acc_tokens: int = -1
    input_tokens: int = -1
    output_tokens: int = -1
    prompt_per_second: float = -1.0
    tokens_per_second: float = -1.0


NO_TOKENS = Tokens(**dict.fromkeys(Tokens.__struct_fields__, 0))


class Row(Struct, frozen=True, kw_only=True):
    """One request on a model route, written when it has ended. The log assigns ``id``."""

    id: int = 0
    timestamp: datetime
    """When the request ended, with a time zone; kept to the second."""
    model: str
    """The real id, not the alias that the client used; for an unknown model, the requested name."""
    req_path: str
    resp_content_type: str = ""
    resp_status_code: int
    tokens: Tokens = NO_TOKENS
    duration_ms: int
    has_capture: bool = False
    error_msg: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    first_token_ms: int = -1
    """From the request to the first token of its answer, with the wait for the model; -1 if unknown."""
    client: str = ""
    """Its program and its address, in short; as of requests under way."""
    build: str = ""
    """The id of the engine that answered; empty where this program has not chosen it."""
    conversation: str = ""
    """The id of the conversation that it belongs to, where it says so."""
    cache_miss: str = ""
    """The reason for which its prompt was mostly read again: a `MissKind`; empty where it was not."""
    again_tokens: int = 0
    """Tokens read again that the conversation's request before had as well."""


class ActivityPage(Struct, frozen=True, kw_only=True):
    data: tuple[Row, ...]
    page: int
    limit: int
    total: int
    total_pages: int


class Histogram(Struct, frozen=True, kw_only=True, rename={"bin_size": "binSize"}):
    """The distribution of speeds, in tokens per second: bins of equal width from ``min`` on."""

    bins: list[int]
    min: float
    max: float
    bin_size: float = 0.0
    p50: float
    p95: float
    p99: float


class Stats(Struct, frozen=True, kw_only=True):
    """Totals over the rows kept. Unknown numbers count as nothing; a histogram without a known speed is null."""

    total_requests: int
    total_input_tokens: int
    total_output_tokens: int
    total_cache_tokens: int
    prompt_histogram: Histogram | None
    gen_histogram: Histogram | None


class Capture(Struct, frozen=True, kw_only=True):
    """One exchange kept for its reader. In JSON bodies are base64 and parts that are not kept are null."""

    id: int
    req_path: str
    req_headers: dict[str, str]
    req_body: bytes | None = None
    sent_body: bytes | UnsetType = UNSET
    """The body that the engine took, where that was a repaired one."""
    resp_headers: dict[str, str] | None = None
    resp_body: bytes | None = None


class Branch(Struct, frozen=True, rename="camel"):
    """One branch of a repository."""

    name: str
    target_commit: str


class Refs(Struct, frozen=True):
    """``GET /api/models/<repo>/refs``."""

    branches: tuple[Branch, ...] = ()


class Revision(Struct, frozen=True):
    """``GET /api/models/<repo>/revision/<branch, tag or commit>``."""

    sha: str


class Lfs(Struct, frozen=True):
    """For a file that is kept outside git: ``oid`` is the sha256 of its contents."""

    oid: str
    size: int | None = None


class TreeEntry(Struct, frozen=True):
    """One line of ``GET /api/models/<repo>/tree/<commit>?recursive=true``. ``oid`` is git's own hash."""

    type: str
    path: str
    oid: str = ""
    size: int | None = None
    lfs: Lfs | None = None


class HubModel(Struct, frozen=True):
    """One line of ``GET /api/models?search=``. ``gated``: its owner wants terms accepted, or to be asked."""

    id: str
    downloads: int = 0
    likes: int = 0
    gated: bool | str = False
    tags: tuple[str, ...] = ()


class ImageLayer(Struct, frozen=True, rename="camel"):
    """One blob of an image; ``digest`` is ``sha256:`` and the hash of its contents."""

    media_type: str
    digest: str
    size: int


class ImageManifest(Struct, frozen=True):
    """``GET /v2/<name>/manifests/<tag>``."""

    layers: tuple[ImageLayer, ...] = ()


class RegistryToken(Struct, frozen=True):
    """The token that a registry's token server gives to anybody."""

    token: str = ""
    access_token: str = ""


class PartialHead(Struct, frozen=True, kw_only=True, tag="file", tag_field="t"):
    """First line of a partial file's journal: the file that it will be. ``oid`` is empty if no hash is known."""

    oid: str
    size: int
    repo: str
    path: str
    version: int = 1


class PartialChunk(Struct, frozen=True, tag="chunk", tag_field="t"):
    """The file is on disk up to ``end``; the bytes since the line before have this CRC-32."""

    end: int
    crc: int


class PartialSource(Struct, frozen=True, tag="source", tag_field="t"):
    """The server that sent the file, and its ETag, which must not change between two connections to it."""

    host: str
    etag: str


PartialLine = PartialHead | PartialChunk | PartialSource


class ServiceStatus(Struct, frozen=True, kw_only=True):
    """The program's service as the operating system sees it. ``state``: active, activating, inactive, failed ..."""

    installed: bool = False
    enabled: bool = False
    state: str
    detail: str = ""
    pid: int | None = None
    restarts: int = 0
    said: str = ""
    """The program's last report."""
    unit: str
    """Its entry: the unit's file, or the command line."""


# ---- the pool --------------------------------------------------------------------------------------------------------
