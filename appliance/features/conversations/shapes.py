"""The shapes of conversations: in the routes, in the store, and in the files that are exported.

Times are Unix milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

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
    revision: int = 0  # Grows with every change. A writer says which one it has seen.


class Fields(Struct, frozen=True, kw_only=True):
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
    settings: Raw = field(default_factory=lambda: Raw(b"{}"))  # an object: model, system prompt, parameters
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
    change: int = 0  # the newest change that the answer knows of
    since: int = 0  # the change that the answer builds on; 0: it has everything
    conversations: tuple[Conversation, ...] = ()
    deleted: tuple[DeletedConversation, ...] = ()
    presets: dict[str, Raw] | UnsetType = UNSET  # settings, JSON objects, by their names; unset: as they were
    bytes: int = 0
    limit: int = 0


class Removed(Struct, frozen=True, kw_only=True):
    """The messages that were deleted, and those that now answer another one."""

    ids: list[str]
    moved: list[str] = []


class WrittenMessage(Struct, frozen=True, kw_only=True):
    """A message as it was written. ``branched``: another client had changed it meanwhile, so it became a sibling."""

    message: MessageNode
    branched: bool = False
