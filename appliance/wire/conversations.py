"""Conversations of the page, as they cross HTTP and lie on disk. Times are Unix milliseconds."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Id = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Role = Literal["system", "user", "assistant", "tool"]
State = Literal["done", "answering", "stopped", "failed", "interrupted"]
EMPTY = Raw(b"{}")


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that belongs to a message; its content is stored once, under its SHA-256."""

    hash: Hash
    name: Annotated[str, Meta(max_length=255)]
    type: Annotated[str, Meta(max_length=127)]
    size: int = 0


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    messages: tuple[Message, ...] = ()
    deleted: tuple[str, ...] = ()


class Hit(Struct, frozen=True, kw_only=True):
    """One message that has all words of a search; ``excerpt`` marks them with U+0002 and U+0003."""

    conversation: str
    message: str
    title: str
    excerpt: str


class Listing(Struct, frozen=True, kw_only=True):
    """``GET /api/conversations``."""

    enabled: bool
    conversations: tuple[Conversation, ...] = ()
    bytes: int = 0
    limit: int = 0


class Written(Struct, frozen=True, kw_only=True):
    """The answer to a message that was written. ``branched``: somebody else had changed it meanwhile, so it became a
    branch beside the other one.
    """

    message: Message
    branched: bool = False
