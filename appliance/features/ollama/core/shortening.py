"""A chat that is longer than its model's context loses its oldest messages, as Ollama has it (``truncate``).

The number of its tokens is known only when the model's template has rendered it. That takes two questions to the
engine, which are spared wherever the number of bytes says enough.
"""

from __future__ import annotations

import msgspec

from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject

LEAST_CONTEXT = 2048
"""Tokens that every engine has for a request, more or less; a shorter one is not measured before it is loaded."""
IMAGE_TOKENS = 768  # how many tokens Ollama counts for a picture


def may_be_too_long(body: bytes, context: int) -> bool:
    """False where a chat surely fits, since no token has less than one byte; pictures count by their number."""
    return len(body) > context and sum(_size(message) for message in chat_messages(body)) > context


def chat_messages(body: bytes) -> list[JsonObject]:
    """Return the messages of a body that `chat_body` has made."""
    given = OBJECT.decode(body)["messages"]
    return [message for message in given if isinstance(message, dict)] if isinstance(given, list) else []


def without_oldest(body: bytes, count: int) -> bytes:
    """Return the chat without its oldest messages; those of the system stay, and so does the last one."""
    kept: list[JSON] = []
    messages = chat_messages(body)
    for place, message in enumerate(messages):
        if message.get("role") == "system" or place == len(messages) - 1 or count <= 0:
            kept.append(message)
        else:
            count -= 1
    return msgspec.json.encode({**OBJECT.decode(body), "messages": kept})


def pictures(body: bytes) -> int:
    """Return how many pictures a chat has."""
    return sum(len(_media(message)) for message in chat_messages(body))


def template_body(body: bytes) -> bytes:
    """Return the body for ``/apply-template``, which renders texts alone."""
    members = OBJECT.decode(body)
    messages = [{**message, "content": _text(message)} for message in chat_messages(body)]
    wanted = ("model", "tools", "chat_template_kwargs")
    return msgspec.json.encode({**{n: members[n] for n in wanted if n in members}, "messages": messages})


def _media(message: JsonObject) -> list[JSON]:
    parts = message.get("content")
    return (
        [part for part in parts if not (isinstance(part, dict) and "text" in part)] if isinstance(parts, list) else []
    )


def _text(message: JsonObject) -> JSON:
    parts = message.get("content")
    if not isinstance(parts, list):
        return parts
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _size(message: JsonObject) -> int:
    text = msgspec.json.encode({**message, "content": _text(message)})
    return len(text) + IMAGE_TOKENS * len(_media(message))
