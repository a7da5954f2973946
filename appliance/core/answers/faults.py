"""Mistakes of clients, in llama-server's words up to b11549. It answers many with a 500, which agents repeat for ever.

Its words about a chat template are not here: what a template refuses depends on the template.
"""

from __future__ import annotations

import re

from msgspec import Struct


class ClientFault(Struct, frozen=True):
    """A kind of mistake. ``words`` tell the client what the engine means."""

    pattern: re.Pattern[str]
    words: str


def _fault(pattern: str, words: str) -> ClientFault:
    return ClientFault(re.compile(pattern, re.IGNORECASE | re.DOTALL), words)


FAULTS = {
    "pictures": _fault(
        "image input is not supported",
        "this model reads no pictures: leave them out, or ask one with a projector",
    ),
    "sound": _fault(
        "(audio|video) input is not supported",
        "this model reads no sound or film: leave it out, or ask one that does",
    ),
    "media": _fault(
        "failed to (load|decode|download) (image|audio|video|media)|invalid url",
        "a picture or a sound cannot be read; send it as a data URL in base64",
    ),
    "arguments": _fault(
        "tool call arguments|filter 'items'|item pairs", "the arguments of a tool call are not a JSON object in text"
    ),
    "call ids": _fault("tool call ids? should", "the template wants ids of nine letters and digits"),
    "roles": _fault("missing 'role'", "each message needs a role"),
    "messages": _fault("failed to parse messages", "a message has a member of the wrong type"),
    "tools": _fault(
        "failed to parse tools|missing tool|unsupported tool type",
        'a tool looks like {"type": "function", "function": {"name": ..., "parameters": {...}}}',
    ),
    "tool_choice": _fault("tool_choice", "tool_choice is auto, none, required or the name of a function"),
    "schema": _fault("json schema error", "a schema asks for what no grammar can hold"),
    "grammar": _fault(
        "failed to initialize samplers|failed to parse grammar",
        "the engine can make no grammar of what the answer is to look like",
    ),
    "part": _fault(r"content\[\]\.type", "a part of a content is of a kind that chats do not have"),
    "content": _fault(
        "'content' to be a string|'content' or 'tool_calls'|missing 'content'",
        "a content is a text or a list of parts",
    ),
    "assistants": _fault("2 or more assistant messages", "the answer can go on with one message of the assistant only"),
    "member": _fault(
        r"\A(?!.*(jinja|while executing)).*(is required|type must be \w+, but is)",
        "a member is missing, or of the wrong type",
    ),
}
"""The first whose pattern is found counts."""


def fault_in(message: str) -> str | None:
    """Return the name in `FAULTS` of the mistake that an engine's message is about; None: another, or none."""
    return next((name for name, fault in FAULTS.items() if fault.pattern.search(message)), None)
