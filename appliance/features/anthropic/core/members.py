"""The fate of each member of a Messages request. `asking` reads it from here, and so does the table of the docs.

Source: the types of Anthropic's official client 2.11, with its beta members, and llama-server b11434
(``server-chat.cpp``), whose own ``/v1/messages`` this replaces. A member without a line belongs to llama-server if it
is the request's, and is noted anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct

from appliance.core.bodies.json_text import JsonObject


class Fate(Enum):
    """The values are the docs' words."""

    USED = "used"
    IGNORED = "ignored"
    """It changes nothing that a client could see, so nothing says so."""
    NOTED = "noted"
    """It is ignored, and the header ``X-Appliance-Ignored`` names it."""
    REFUSED = "refused"
    """A 400 in words, unless it is null or empty."""


class Treated(Struct, frozen=True):
    fate: Fate
    why: str


def _used(why: str = "") -> Treated:
    return Treated(Fate.USED, why)


def _ignored(why: str) -> Treated:
    return Treated(Fate.IGNORED, why)


def _noted(why: str) -> Treated:
    return Treated(Fate.NOTED, why)


def _refused(why: str) -> Treated:
    return Treated(Fate.REFUSED, why)


_CACHED = _ignored("llama-server keeps what it has read of every prompt")
_ELSEWHERE = _noted("a matter of Anthropic's own servers")
_NO_CITATIONS = _noted("a model here cites nothing")
_NO_FILES = _refused("this server keeps no files; send the content itself, in base64 or as text")
_NO_FETCH = _refused("this server fetches no documents; send the content itself, in base64 or as text")
_TYPE = _used()

MEMBERS: Mapping[str, Mapping[str, Treated]] = {
    "request": {
        "model": _used("the model's name"),
        "messages": _used("roles `user`, `assistant`, `system`; others as the model's template knows them"),
        "system": _used("the first message; blocks are joined by line feeds"),
        "max_tokens": _used("4096 where it is missing"),
        "stream": _used(),
        "stop_sequences": _used("empty ones do not count"),
        "temperature": _used(),
        "top_p": _used(),
        "top_k": _used(),
        "tools": _used("see below"),
        "tool_choice": _used("see below"),
        "thinking": _used("see below"),
        "output_config": _used("see below"),
        "output_format": _used("as `output_config.format`"),
        "chat_template_kwargs": _used("llama-server's; goes before what `thinking` says"),
        "cache_control": _CACHED,
        "metadata": _ignored("users have keys here"),
        "service_tier": _ignored("there is one"),
        "inference_geo": _ignored("the answer comes from this server"),
        "betas": _ignored("no feature waits for a name"),
        "speed": _ignored("there is one"),
        "diagnostics": _noted("`GET /api/cache` says why a prompt was not in the cache"),
        "context_management": _noted("the client's own messages are what the model gets"),
        "compaction": _noted("the client's own messages are what the model gets"),
        "container": _noted("there are none"),
        "fallbacks": _noted("a configuration names stand-ins"),
        "billing_policy": _ELSEWHERE,
        "fallback_credit_token": _ELSEWHERE,
        "user_profile_id": _ELSEWHERE,
        "workspace_id": _ELSEWHERE,
        "mcp_servers": _refused("this server connects to the MCP servers of its own configuration only"),
        "thread": _refused("this server keeps no threads; send all messages"),
        "n": _refused("a message is one answer"),
        "n_cmpl": _refused("a message is one answer"),
    },
    "thinking": {
        "type": _used("`enabled`, `adaptive` and `between_tools` switch it on, `disabled` off (`enable_thinking`)"),
        "budget_tokens": _used("10000 where it is missing"),
        "display": _noted("thoughts are shown as they are"),
    },
    "output_config": {
        "format": _used("`json_schema`: a grammar holds the model to it"),
        "effort": _used("the template's `reasoning_effort`; `xhigh` and `max` are `high`"),
        "task_budget": _noted("only `max_tokens` counts"),
    },
    "tool_choice": {
        "type": _used("`auto`, `any`, `tool`, `none`"),
        "name": _used("the model is given this tool alone, and has to call it; the others are noted"),
        "disable_parallel_tool_use": _used("`parallel_tool_calls`"),
    },
    "tools": {
        "type": _used("see below"),
        "name": _used(),
        "description": _used(),
        "input_schema": _used("any object where it is missing"),
        "strict": _used(),
        "cache_control": _CACHED,
        "eager_input_streaming": _ignored("input always comes as the model writes it"),
        "defer_loading": _noted("the model gets every tool at once"),
        "allowed_callers": _noted("only the model calls tools"),
        "input_examples": _noted("describe them in `description`"),
    },
    "text": {"type": _TYPE, "text": _used(), "cache_control": _CACHED, "citations": _ignored("those of an answer")},
    "image": {"type": _TYPE, "source": _used(), "cache_control": _CACHED, "transformations": _noted("none is made")},
    "document": {
        "type": _TYPE,
        "source": _used("its text, between marks that carry the title"),
        "title": _used(),
        "context": _used(),
        "cache_control": _CACHED,
        "citations": _NO_CITATIONS,
    },
    "search_result": {
        "type": _TYPE,
        "content": _used("its text, between marks that carry title and source"),
        "title": _used(),
        "source": _used(),
        "cache_control": _CACHED,
        "citations": _NO_CITATIONS,
    },
    "thinking block": {"type": _TYPE, "thinking": _used("`reasoning_content`"), "signature": _ignored("not checked")},
    "redacted_thinking": {"type": _TYPE, "data": _noted("only Anthropic can read it")},
    "tool_use": {
        "type": _TYPE,
        "id": _used(),
        "name": _used(),
        "input": _used(),
        "cache_control": _CACHED,
        "caller": _ignored("only the model calls tools"),
        "toolset_name": _ignored("the name tells it"),
    },
    "tool_result": {
        "type": _TYPE,
        "tool_use_id": _used(),
        "content": _used("text, images, documents, search results"),
        "is_error": _used("the text then begins with `Error:`"),
        "cache_control": _CACHED,
        "toolset_name": _ignored("the id tells it"),
    },
}  # fmt: skip
"""By the kind of object."""

SOURCES: Mapping[str, Treated] = {
    "image base64": _used("a data URL"),
    "image url": _used("llama-server fetches it"),
    "image file": _NO_FILES,
    "document text": _used(),
    "document content": _used("text and images"),
    "document base64": _used("the text of a PDF or Word document (.docx) of at most 16 MiB, or text of any type"),
    "document url": _NO_FETCH,
    "document file": _NO_FILES,
}
"""The sources of images and documents, by their types."""

OTHER_BLOCKS = _noted("all text in them, behind the name of the type")
"""Calls of Anthropic's tools with their results, and blocks of types that nobody knows yet."""

SERVER_TOOLS: Mapping[str, Treated] = {
    "web_search_": _noted("Anthropic's servers run it; refused where `tool_choice` wants it"),
    "web_fetch_": _noted("the same"),
    "code_execution_": _noted("the same"),
    "tool_search_tool_": _noted("the same"),
    "advisor_": _noted("the same"),
    "mcp_toolset": _noted("the same"),
}
"""By the beginning of a tool's type."""

_PATH: JsonObject = {"type": "string", "description": "Absolute path"}
_LINES: JsonObject = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "First and last line; -1 is the end",
}
_EDIT: JsonObject = {
    "path": _PATH, "file_text": {"type": "string"}, "old_str": {"type": "string"}, "new_str": {"type": "string"},
    "insert_line": {"type": "integer"}, "insert_text": {"type": "string"}, "view_range": _LINES,
}  # fmt: skip


def _commands(words: str, more: JsonObject) -> JsonObject:
    command: JsonObject = {"type": "string", "enum": [*words.split()]}
    return {"type": "object", "properties": {"command": command, **more}, "required": ["command", "path"]}


CLIENT_TOOLS: Mapping[str, tuple[str, JsonObject]] = {
    "bash_": (
        "Run a command in a bash session that persists, or restart it.",
        {"type": "object", "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}}},
    ),
    "text_editor_": ("View, create and edit files.", _commands("view create str_replace insert", _EDIT)),
    "memory_": (
        "Keep notes in files below /memories.",
        {
            **_commands("view create str_replace insert delete rename", {
                **_EDIT, "old_path": {"type": "string"}, "new_path": {"type": "string"},
            }),
            "required": ["command"],
        },
    ),
}  # fmt: skip
"""Anthropic's tools that clients run, by the beginnings of their types: what Claude knows without being told."""


def table() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the docs: the member, its fate, and why."""
    for kind, members in MEMBERS.items():
        for name, member in members.items():
            if member is not _TYPE:
                yield f"`{name}`" if kind == "request" else f"{kind}: `{name}`", member.fate.value, member.why
    for kind, member in SOURCES.items():
        first, _, last = kind.partition(" ")
        yield f"{first} source `{last}`", member.fate.value, member.why
    yield "blocks of other types", OTHER_BLOCKS.fate.value, OTHER_BLOCKS.why
    for prefix in CLIENT_TOOLS:
        yield f"tool `{prefix}*`", Fate.USED.value, "with the schema that Claude knows by heart"
    for prefix, member in SERVER_TOOLS.items():
        yield f"tool `{prefix}*`", member.fate.value, member.why
    yield "tools of other types", Fate.NOTED.value, "the model gets the name, and any object as input"
