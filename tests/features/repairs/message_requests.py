"""Requests of Anthropic's Messages alone, as arguments of its official client's call; see `dialect_requests`."""

from __future__ import annotations

from collections.abc import Mapping

from asked_chats import OF_AGENTS
from neutral import PNG, Json, w

SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string", "description": w("What")}}}


def _message(*blocks: object, **more: object) -> Json:
    return {"messages": [{"role": "user", "content": list(blocks)}], "max_tokens": 3, **more}


def _text(text: str = "Hi", **more: object) -> Json:
    return {"type": "text", "text": w(text), **more}


def _document(source: Json, **more: object) -> Json:
    return {"type": "document", "source": source, **more}


def _used(result: object, **more: object) -> Json:
    """A chat in which a tool was called, with this content as its result."""
    return {
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": w("Hi")},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": w("x")}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": result}]},
        ],
        "tools": [{"name": "look", "description": w("Looks"), "input_schema": {"type": "object", "properties": {}}}],
        **more,
    }


def _served(*blocks: object) -> Json:
    """A turn of the assistant in which Anthropic's servers have run a tool."""
    return {
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": w("Hi")},
            {"role": "assistant", "content": [*blocks, _text("So")]},
            {"role": "user", "content": w("More")},
        ],
    }


_CACHED = {"cache_control": {"type": "ephemeral"}}
_PICTURE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
_FOUND: Json = {
    "type": "search_result",
    "source": "https://example.org/a",
    "title": w("Title"),
    "content": [_text("Found")],
    "citations": {"enabled": True},
}
_PLAIN: Json = {"type": "text", "media_type": "text/plain", "data": w("A file")}

MESSAGES: Mapping[str, Json] = {
    "contents as text": {
        "messages": [
            {"role": "user", "content": w("Hi")},
            {"role": "assistant", "content": w("Hello")},
            {"role": "user", "content": w("More")},
        ],
        "max_tokens": 3,
    },
    "marks of the cache": _message(
        _text(**_CACHED),
        system=[_text("Be kind", **_CACHED)],
        tools=[{"name": "look", "description": w("Looks"), "input_schema": SCHEMA, **_CACHED}],
    ),
    "system in the messages": {
        "messages": [
            {"role": "user", "content": w("Hi")},
            {"role": "assistant", "content": w("Hello")},
            {"role": "system", "content": w("Be short")},
            {"role": "user", "content": w("More")},
        ],
        "max_tokens": 3,
    },
    "first turn of an agent": {
        "messages": [
            {"role": "user", "content": [_text("Today"), _text("Hi", **_CACHED)]},
            {"role": "system", "content": w("Be short")},
        ],
        "system": [_text("You are an agent", **_CACHED), _text("Be kind", **_CACHED)],
        "tools": [{"name": "look", "description": w("Looks"), "input_schema": OF_AGENTS}],
        "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "max_tokens": 3,
        "extra_body": {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    },
    "second turn of an agent": {
        "messages": [
            {"role": "user", "content": [_text("Today"), _text("Hi")]},
            {"role": "system", "content": w("Be short")},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": w("Hm"), "signature": ""},
                    _text("I look"),
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"q": w("x")}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": w("found"),
                        "is_error": False,
                        **_CACHED,
                    }
                ],
            },
        ],
        "tools": [
            {"name": "look", "description": w("Looks"), "input_schema": OF_AGENTS, "eager_input_streaming": True}
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 3,
    },
    "thread": _message(_text(), extra_body={"thread": {"type": "create"}}),
    "document of text": _message(_document(_PLAIN, title=w("Title"), context=w("Context"))),
    "document of blocks": _message(_document({"type": "content", "content": [_text("One"), _PICTURE]})),
    "document, cited": _message(_document(_PLAIN, citations={"enabled": True})),
    "document by URL": _message(_document({"type": "url", "url": "https://example.org/a.pdf"})),
    "document by id": _message(_document({"type": "file", "file_id": "file_1"})),
    "search result": _message(_FOUND, _text()),
    "search result of a tool": _used([_FOUND]),
    "document of a tool": _used([_document(_PLAIN)]),
    "picture of a tool": _used([_PICTURE]),
    "picture and words of a tool": _used([_text("See"), _PICTURE]),
    "result as text": _used(w("found")),
    "reference to a tool": _used([{"type": "tool_reference", "tool_name": "look"}]),
    "result without content": {
        "max_tokens": 3,
        "messages": [
            *_used("")["messages"][:2],
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
        ],
    },
    "words before a result": {
        "max_tokens": 3,
        "messages": [
            *_used("")["messages"][:2],
            {
                "role": "user",
                "content": [_text("See"), {"type": "tool_result", "tool_use_id": "toolu_1", "content": w("found")}],
            },
        ],
    },
    "picture by URL": _message({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
    "picture by id": _message({"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    "hidden thoughts": _served({"type": "redacted_thinking", "data": "abc"}),
    "search of Anthropic": _served(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": w("What")}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {
                    "type": "web_search_result",
                    "title": w("Title"),
                    "url": "https://example.org",
                    "encrypted_content": "abc",
                }
            ],
        },
    ),
    "page of Anthropic": _served(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "https://example.org"}},
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "web_fetch_result", "url": "https://example.org", "content": _document(_PLAIN)},
        },
    ),
    "code of Anthropic": _served(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {"command": w("ls")}},
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "bash_code_execution_result",
                "stdout": w("a.txt"),
                "stderr": "",
                "return_code": 0,
                "content": [],
            },
        },
    ),
    "upload to a container": _message({"type": "container_upload", "file_id": "file_1"}, _text()),
    "shell of Claude": _message(_text(), tools=[{"type": "bash_20250124", "name": "bash"}]),
    "editor of Claude": _message(
        _text(), tools=[{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100}]
    ),
    "memory of Claude": _message(_text(), tools=[{"type": "memory_20250818", "name": "memory"}]),
    "search tool": _message(_text(), tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]),
    "search tool and another": _message(
        _text(),
        tools=[
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": "look", "description": w("Looks"), "input_schema": SCHEMA},
        ],
    ),
    "search tool wanted": _message(
        _text(),
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "web_search"},
    ),
    "one call at a time": _message(
        _text(),
        tools=[{"name": "look", "input_schema": SCHEMA}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    ),
    "examples of a tool": _message(
        _text(), tools=[{"name": "look", "input_schema": SCHEMA, "input_examples": [{"q": w("x")}]}]
    ),
    "tools that wait": _message(
        _text(), tools=[{"name": "look", "description": w("Looks"), "input_schema": SCHEMA, "defer_loading": True}]
    ),
    "thinks as it likes": _message(_text(), thinking={"type": "adaptive"}),
    "thoughts not shown": _message(_text(), thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}),
    "effort max": _message(_text(), output_config={"effort": "max"}),
    "user and tier": _message(_text(), metadata={"user_id": "u"}, service_tier="auto"),
    "container": _message(_text(), container="container_1"),
    "no tokens": _message(_text()) | {"max_tokens": 0},
    "empty text": _message(_text(), {"type": "text", "text": ""}),
    "answer of an empty assistant": {
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": w("Hi")},
            {"role": "assistant", "content": []},
            {"role": "user", "content": w("More")},
        ],
    },
    "members of tomorrow": _message(
        _text(), extra_body={"mood": "kind", "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    ),
    "servers of MCP": _message(
        _text(), extra_body={"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}]}
    ),
    "block of tomorrow": _message({"type": "hologram", "title": w("Title"), "content": [_text("See")]}),
}
