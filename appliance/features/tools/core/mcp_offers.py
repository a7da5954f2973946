"""The offers of an MCP server beside its tools: prompts, which people fill in, and resources, which they read."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.lenient_json import decoded
from appliance.features.tools.core.mcp_messages import RpcAnswer

MAX_OFFERS = 500  # prompts, and resources, of one server
MAX_TEXT = 4 << 20  # characters of one prompt or resource
T = TypeVar("T")


class Argument(Struct, frozen=True):
    """One field of a prompt's form."""

    name: str
    description: str | None = None
    required: bool = False


class McpPrompt(Struct, frozen=True):
    """A text that the server makes, by the values of its arguments."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[Argument, ...] | None = None


class Resource(Struct, frozen=True):
    """A text or file that the server can read."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mimeType: str | None = None


class Offers(Struct, frozen=True, kw_only=True):
    """Everything of one server; ``error`` where it could not be asked."""

    server: str
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    error: str | None = None


class _Content(Struct):
    type: str = ""
    text: str | None = None
    resource: Raw | UnsetType = UNSET


class _PromptMessage(Struct):
    role: str
    content: _Content


class _Messages(Struct):
    messages: list[_PromptMessage] = []


class _Held(Struct):
    uri: str = ""
    text: str | None = None
    blob: str | None = None
    mimeType: str | None = None


class _ResourceContents(Struct):
    contents: list[_Held] = []


def read_offers(answer: RpcAnswer | None, member: str, kind: type[T]) -> tuple[T, ...]:
    """Return those that can be understood; a server that knows none answers with an error, and has none."""
    found = decoded(dict[str, Raw], answer.result) if answer is not None and answer.result is not None else None
    offers = decoded(list[Raw], (found or {}).get(member, b"[]")) or []
    return tuple(one for raw in offers[:MAX_OFFERS] if (one := decoded(kind, raw)) is not None)


def prompt_text(result: Raw) -> str:
    """Return the text of a prompt's messages. Raises ValueError where there is none."""
    found = decoded(_Messages, result)
    if found is None:
        raise ValueError("its answer is not a prompt")
    texts = [_text_of(message.content) for message in found.messages]
    if not (text := "\n\n".join(text for text in texts if text)):
        raise ValueError("the prompt has no text")
    return text[:MAX_TEXT]


def _text_of(content: _Content) -> str:
    if content.resource is not UNSET:
        held = decoded(_Held, content.resource)
        return held.text or "" if held is not None else ""
    return content.text or ""


def resource_text(result: Raw) -> str:
    """Return the text of a resource. Raises ValueError for anything but text."""
    found = decoded(_ResourceContents, result)
    if found is None or not found.contents:
        raise ValueError("its answer is not a resource")
    texts = [held.text for held in found.contents if held.text is not None]
    if not texts:
        kinds = ", ".join(held.mimeType or "unknown" for held in found.contents)
        raise ValueError(f"the resource is not text ({kinds})")
    return "\n".join(texts)[:MAX_TEXT]
