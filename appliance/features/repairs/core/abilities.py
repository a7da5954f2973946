"""Requests for what a model cannot do, as its file, its template and its command say. Refuses to guess."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Raw, Struct

from appliance.core.lenient_json import decoded
from appliance.core.models.abilities import may_read
from appliance.core.models.embedding import served_kind
from appliance.core.models.model import Model
from appliance.errors import BadRequest
from appliance.features.repairs.core.messages import members, parts, role, text

ROUTES = frozenset(
    f"{prefix}{path}"
    for path in ("/chat/completions", "/completions", "/completion", "/infill")
    for prefix in ("", "/v1", "/v/v1", "/v")
)
"""They make text."""
TOKENS = ("/tokenize", "/detokenize")
EMBEDDINGS = ("/embedding", "/embeddings", "/v1/embeddings", "/v/embeddings")
RANKS = tuple(f"{prefix}/rerank{end}" for prefix in ("", "/v1", "/v") for end in ("", "ing"))
_ANSWERS = {
    **dict.fromkeys(EMBEDDINGS, "embedding"),
    **dict.fromkeys(RANKS, "rerank"),
    **dict.fromkeys(("/v1/audio/transcriptions", "/audio/transcriptions"), "audio"),
    **dict.fromkeys(ROUTES, "generation"),
}
"""The wish of each route."""
_WORDS = {
    "embedding": "makes no embeddings",
    "rerank": "ranks no documents",
    "generation": "makes {kind} and no text",
    "audio": "reads no sound or film: leave it out, or ask a model that does",
    "image": "reads no pictures: leave them out, or ask a model with a projector",
}
_KINDS = {"embedding": "embeddings", "rerank": "ranks of documents"}
_MEDIA = {"image_url": "image", "input_audio": "audio", "input_video": "video"}
_PARTS = re.compile(rb'"(?:image_url|input_audio|input_video)"')
_OTHER_TEMPLATE = re.compile("--(chat-template|jinja|no-jinja)")


class _Wishes(Struct):
    messages: list[dict[str, Raw]] = []
    tools: list[Raw] | None = None
    tool_choice: Raw = Raw(b"null")


def unable(route: str, model: Model, arguments: Sequence[str], body: bytes) -> BadRequest | None:
    """Return the error for what a request asks of a model that is known not to do it.

    ``arguments`` are the engine's for every model.
    """
    asked, config = _ANSWERS.get(route), model.config
    if asked is None or model.fetch or model.unread:
        return None
    if asked == "audio":
        return None if may_read(model, asked, arguments) else _refusal(model, asked)
    words, environ = ((*model.args, *arguments), ()) if config is None else (config.argv, config.env)
    made = served_kind(words, environ) or (model.info.kind if model.info is not None else asked)
    if made != asked and (made, asked) != ("rerank", "embedding"):
        return _refusal(model, asked, _KINDS.get(made, "something else"))
    if asked == "generation":
        return _unreadable(model, arguments, body) or _uncallable(model, body)
    return None


def _refusal(model: Model, what: str, kind: str = "") -> BadRequest:
    return BadRequest(f"the model {model.id!r} {_WORDS[what].format(kind=kind)}")


def _unreadable(model: Model, arguments: Sequence[str], body: bytes) -> BadRequest | None:
    """Pictures and sounds. Those in results of tools become notes instead: the conversation has to go on."""
    unread = {medium for medium in _MEDIA.values() if not may_read(model, medium, arguments)}
    if not unread or _PARTS.search(body) is None or (chat := decoded(_Wishes, body)) is None:
        return None
    for message in chat.messages:
        for part in parts(message.get("content")) or () if role(message) != "tool" else ():
            medium = _MEDIA.get(text((members(part) or {}).get("type")) or "")
            if medium in unread:
                return _refusal(model, "image" if medium == "image" else "audio")
    return None


def _uncallable(model: Model, body: bytes) -> BadRequest | None:
    if not has_no_tools(model) or b'"tool_choice"' not in body or not _must_call(body):
        return None
    return BadRequest(
        f"the chat template of {model.id!r} has no place for tools, so no call can be required of it; leave "
        "tool_choice out, or ask another model",
        param="tool_choice",
    )


def has_no_tools(model: Model) -> bool:
    """The chat template is the file's own, and says nothing of tools: the engine then drops them in silence."""
    template = model.info.chat_template if model.info is not None else None
    return template is not None and "tool" not in template and not any(map(_OTHER_TEMPLATE.match, model.args))


def has_tools(body: bytes) -> bool:
    """Return whether a body offers tools."""
    return b'"tools"' in body and (chat := decoded(_Wishes, body)) is not None and bool(chat.tools)


def _must_call(body: bytes) -> bool:
    chat = decoded(_Wishes, body)
    choice = chat.tool_choice if chat is not None and chat.tools else None
    return choice is not None and (text(choice) in ("required", "any") or members(choice) is not None)
