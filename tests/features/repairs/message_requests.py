"""Requests of Anthropic's Messages alone, as arguments of its official client's call; see `dialect_requests`."""

from __future__ import annotations

from collections.abc import Mapping

from asked_chats import OF_AGENTS, say
from neutral import PNG, Json, w

SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string", "description": w("What")}}}
_CACHED = {"cache_control": {"type": "ephemeral"}}
_PICTURE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
_PLAIN: Json = {"type": "text", "media_type": "text/plain", "data": w("A file")}
_SEARCH: Json = {"type": "web_search_20250305", "name": "web_search"}


def _talk(*messages: object, **more: object) -> Json:
    return {"messages": list(messages), "max_tokens": 3, **more}


def _user(*blocks: object) -> Json:
    return say("user", list(blocks))


def _message(*blocks: object, **more: object) -> Json:
    return _talk(_user(*blocks), **more)


def _text(text: str = "Hi", **more: object) -> Json:
    return {"type": "text", "text": w(text), **more}


def _document(source: Json, **more: object) -> Json:
    return {"type": "document", "source": source, **more}


def _picture(kind: str, **place: str) -> Json:
    return {"type": "image", "source": {"type": kind, **place}}


def _tool(schema: Json = SCHEMA, **more: object) -> Json:
    return {"name": "look", "description": w("Looks"), "input_schema": schema, **more}


def _terse(**more: object) -> Json:
    """A tool that says nothing of itself."""
    return {"name": "look", "input_schema": SCHEMA, **more}


def _result(**more: object) -> Json:
    return {"type": "tool_result", "tool_use_id": "toolu_1", **more}


def _called(*blocks: object) -> Json:
    """A chat in which a tool was called, and this was said then."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": w("x")}}
    return _talk(say("user", w("Hi")), say("assistant", [use]), _user(*blocks))


def _used(result: object) -> Json:
    """The same with the tool itself, and this content as its result."""
    return {**_called(_result(content=result)), "tools": [_tool({"type": "object", "properties": {}})]}


def _more(assistant: object) -> Json:
    """A chat that goes on after these contents of the assistant."""
    return _talk(say("user", w("Hi")), say("assistant", assistant), say("user", w("More")))


def _served(name: str, given: Json, result: object) -> Json:
    """A turn of the assistant in which Anthropic's servers have run a tool."""
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": given}
    found = {"type": f"{name}_tool_result", "tool_use_id": "srvtoolu_1", "content": result}
    return _more([use, found, _text("So")])


_FOUND: Json = {
    "type": "search_result",
    "source": "https://example.org/a",
    "title": w("Title"),
    "content": [_text("Found")],
    "citations": {"enabled": True},
}
_PAGE: Json = {
    "type": "web_search_result",
    "title": w("Title"),
    "url": "https://example.org",
    "encrypted_content": "abc",
}
_RAN: Json = {
    "type": "bash_code_execution_result",
    "stdout": w("a.txt"),
    "stderr": "",
    "return_code": 0,
    "content": [],
}

MESSAGES: Mapping[str, Json] = {
    "contents as text": _more(w("Hello")),
    "marks of the cache": _message(_text(**_CACHED), system=[_text("Be kind", **_CACHED)], tools=[_tool(**_CACHED)]),
    "system in the messages": _talk(
        say("user", w("Hi")), say("assistant", w("Hello")), say("system", w("Be short")), say("user", w("More"))
    ),
    "first turn of an agent": _talk(
        _user(_text("Today"), _text("Hi", **_CACHED)),
        say("system", w("Be short")),
        system=[_text("You are an agent", **_CACHED), _text("Be kind", **_CACHED)],
        tools=[_tool(OF_AGENTS)],
        metadata={"user_id": '{"device_id":"d","session_id":"s"}'},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    ),
    "second turn of an agent": _talk(
        _user(_text("Today"), _text("Hi")),
        say("system", w("Be short")),
        say(
            "assistant",
            [
                {"type": "thinking", "thinking": w("Hm"), "signature": ""},
                _text("I look"),
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": w("x")}},
            ],
        ),
        _user(_result(content=w("found"), is_error=False, **_CACHED)),
        tools=[_tool(OF_AGENTS, eager_input_streaming=True)],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ),
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
    "result without content": _called(_result()),
    "words before a result": _called(_text("See"), _result(content=w("found"))),
    "picture by URL": _message(_picture("url", url="https://example.org/a.png")),
    "picture by id": _message(_picture("file", file_id="file_1")),
    "hidden thoughts": _more([{"type": "redacted_thinking", "data": "abc"}, _text("So")]),
    "search of Anthropic": _served("web_search", {"query": w("What")}, [_PAGE]),
    "page of Anthropic": _served(
        "web_fetch",
        {"url": "https://example.org"},
        {"type": "web_fetch_result", "url": "https://example.org", "content": _document(_PLAIN)},
    ),
    "code of Anthropic": _served("bash_code_execution", {"command": w("ls")}, _RAN),
    "upload to a container": _message({"type": "container_upload", "file_id": "file_1"}, _text()),
    "shell of Claude": _message(_text(), tools=[{"type": "bash_20250124", "name": "bash"}]),
    "editor of Claude": _message(
        _text(), tools=[{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100}]
    ),
    "memory of Claude": _message(_text(), tools=[{"type": "memory_20250818", "name": "memory"}]),
    "search tool": _message(_text(), tools=[{**_SEARCH, "max_uses": 3}]),
    "search tool and another": _message(_text(), tools=[_SEARCH, _tool()]),
    "search tool wanted": _message(_text(), tools=[_SEARCH], tool_choice={"type": "tool", "name": "web_search"}),
    "one call at a time": _message(
        _text(), tools=[_terse()], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    ),
    "examples of a tool": _message(_text(), tools=[_terse(input_examples=[{"q": w("x")}])]),
    "tools that wait": _message(_text(), tools=[_tool(defer_loading=True)]),
    "thinks as it likes": _message(_text(), thinking={"type": "adaptive"}),
    "thoughts not shown": _message(_text(), thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}),
    "effort max": _message(_text(), output_config={"effort": "max"}),
    "user and tier": _message(_text(), metadata={"user_id": "u"}, service_tier="auto"),
    "container": _message(_text(), container="container_1"),
    "no tokens": _message(_text()) | {"max_tokens": 0},
    "empty text": _message(_text(), {"type": "text", "text": ""}),
    "answer of an empty assistant": _more([]),
    "members of tomorrow": _message(
        _text(), extra_body={"mood": "kind", "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    ),
    "servers of MCP": _message(
        _text(), extra_body={"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}]}
    ),
    "block of tomorrow": _message({"type": "hologram", "title": w("Title"), "content": [_text("See")]}),
}
