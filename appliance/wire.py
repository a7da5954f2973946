"""The shapes that cross a boundary, as msgspec Structs.

Refuses behaviour.

Field names of the activity log are llama-swap's (0bdb3720). Times of conversations are Unix milliseconds. Answers of
the Hugging Face hub and of container registries are described as far as they are read
(https://huggingface.co/docs/hub/api; OCI distribution specification 1.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

EMPTY = Raw(b"{}")


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
    resp_headers: dict[str, str] | None = None
    resp_body: bytes | None = None


Id = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Role = Literal["system", "user", "assistant", "tool"]
State = Literal["done", "answering", "stopped", "failed", "interrupted"]


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that belongs to a message; its content is stored once, under its SHA-256."""

    hash: Hash
    name: Annotated[str, Meta(max_length=255)]
    type: Annotated[str, Meta(max_length=127)]
    size: int = 0


class MessageNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a conversation's tree. ``parent`` and ``role`` never change."""

    id: Id
    parent: Id | None = None
    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Raw, ...] = ()
    tool_call_id: str = ""
    model: str = ""
    attachments: tuple[Attachment, ...] = ()
    state: State = "done"
    error: str = ""
    timings: dict[str, object] | None = None
    created: int = 0
    revision: int = 0
    """Grows with every change. A writer says which one it has seen."""


class Fields(Struct, frozen=True, kw_only=True):
    """Fields of a conversation that are to change."""

    title: Annotated[str, Meta(max_length=300)] | UnsetType = UNSET
    folder: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    leaf: Id | UnsetType | None = UNSET
    draft: Annotated[str, Meta(max_length=1 << 20)] | UnsetType = UNSET
    settings: Raw | UnsetType = UNSET


class Conversation(Struct, frozen=True, kw_only=True):
    """Everything of one conversation but its messages. ``leaf``: the last message of the branch that is shown."""

    id: Id
    title: str = ""
    folder: str = ""
    pinned: bool = False
    created: int
    updated: int
    leaf: Id | None = None
    draft: str = ""
    settings: Raw = EMPTY
    """A JSON object: model, system prompt, parameters, as the page wants them."""
    change: int = 0
    answering: bool = False


class Whole(Struct, frozen=True, kw_only=True):
    """A conversation with its messages, or, after a change, with those that changed since and the ids of deleted."""

    conversation: Conversation
    messages: tuple[MessageNode, ...] = ()
    deleted: tuple[str, ...] = ()


class StoredPreset(Struct, frozen=True, kw_only=True):
    """Settings of conversations under a name, a JSON object; null deletes them."""

    name: Annotated[str, Meta(min_length=1, max_length=60)]
    settings: Raw


class File(Struct, frozen=True, kw_only=True):
    """The content of an attachment; base64 in JSON."""

    type: Annotated[str, Meta(max_length=127)]
    data: bytes


class Carton(Struct, frozen=True, kw_only=True):
    """Whole conversations and the attachments that they name, by hash: the content of an export."""

    conversations: tuple[Whole, ...]
    files: dict[Hash, File] = {}


class Hit(Struct, frozen=True, kw_only=True):
    """One message, or without ``message`` a title, that has all words of a search.

    ``excerpt`` marks them with U+0002 and U+0003.
    """

    conversation: str
    message: str | None
    title: str
    excerpt: str


class DeletedConversation(Struct, frozen=True, kw_only=True):
    """A conversation whose deletion can be taken back for another ``left`` milliseconds; none: it is too late."""

    id: Id
    title: str
    left: int


class ConversationListing(Struct, frozen=True, kw_only=True):
    """``GET /api/conversations``: all of them, or those that have changed after the change ``since``."""

    enabled: bool
    change: int = 0
    """The newest change that the answer knows of."""
    since: int = 0
    """The change that the answer builds on; 0: it has everything."""
    conversations: tuple[Conversation, ...] = ()
    deleted: tuple[DeletedConversation, ...] = ()
    presets: dict[str, Raw] | UnsetType = UNSET
    """Settings of conversations by the names that people gave them; each is a JSON object. Unset: as they were."""
    bytes: int = 0
    limit: int = 0


class Removed(Struct, frozen=True, kw_only=True):
    """The messages that were deleted, and those that now answer another one."""

    ids: list[str]
    moved: list[str] = []


class WrittenMessage(Struct, frozen=True, kw_only=True):
    """The answer to a message that was written. ``branched``: another client had changed it meanwhile, so it became a
    branch beside the other one.
    """

    message: MessageNode
    branched: bool = False


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
