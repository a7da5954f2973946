"""Requests that exist in one dialect alone: the arguments of its official client's call, with what becomes of them.

`REFUSED` are the ones that get a 4xx, whatever the model can do.
"""

from __future__ import annotations

from collections.abc import Mapping

from asked_chats import REQUESTS as CHATS
from neutral import PNG, Json, w


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
_SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string", "description": w("What")}}}

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
        tools=[{"name": "look", "description": w("Looks"), "input_schema": _SCHEMA, **_CACHED}],
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
            {"name": "look", "description": w("Looks"), "input_schema": _SCHEMA},
        ],
    ),
    "search tool wanted": _message(
        _text(),
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "web_search"},
    ),
    "one call at a time": _message(
        _text(),
        tools=[{"name": "look", "input_schema": _SCHEMA}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    ),
    "examples of a tool": _message(
        _text(), tools=[{"name": "look", "input_schema": _SCHEMA, "input_examples": [{"q": w("x")}]}]
    ),
    "tools that wait": _message(
        _text(), tools=[{"name": "look", "description": w("Looks"), "input_schema": _SCHEMA, "defer_loading": True}]
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


def _item(kind: str, **more: object) -> Json:
    return {"type": kind, **more}


def _input(*items: object, **more: object) -> Json:
    return {"input": [*items, {"role": "user", "content": w("Hi")}], "max_output_tokens": 3, **more}


def _run(kind: str, given: Json, output: object, **more: object) -> Json:
    """A call of a tool of this kind, and its output."""
    return _input(
        _item(kind, id="c_1", call_id="call_1", status="completed", **given),
        _item(f"{kind}_output", call_id="call_1", output=output, **more),
    )


_CUSTOM: Json = {"type": "custom", "name": "patch", "description": w("Patches")}
_GRAMMAR: Json = {**_CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": f"start: /{w('a')}/"}}
_FUNCTION: Json = {
    "type": "function",
    "name": "look",
    "description": w("Looks"),
    "parameters": _SCHEMA,
    "strict": False,
}
_DATA = f"data:image/png;base64,{PNG}"

RESPONSES: Mapping[str, Json] = {
    "one text": {"input": w("Hi"), "max_output_tokens": 3},
    "instructions": {"input": w("Hi"), "instructions": w("Be kind")},
    "message without a type": _input({"role": "assistant", "content": w("Hello")}),
    "developer": _input(
        _item("message", role="developer", content=[{"type": "input_text", "text": w("Be short")}]),
        instructions=w("Be kind"),
    ),
    "refusal": _input(
        _item(
            "message", id="m", status="completed", role="assistant", content=[{"type": "refusal", "refusal": w("No")}]
        )
    ),
    "thoughts with text": _input(
        _item("reasoning", id="r", summary=[], content=[{"type": "reasoning_text", "text": w("Hm")}])
    ),
    "thoughts of OpenAI": _input(_item("reasoning", id="r", summary=[], encrypted_content="gAAAAabc")),
    "thoughts hidden here": _input(_item("reasoning", id="r", summary=[], encrypted_content="plain.SG0=")),
    "custom tool": _input(tools=[_CUSTOM]),
    "custom tool with a grammar": _input(tools=[_GRAMMAR]),
    "custom tool called": _input(
        _item("custom_tool_call", call_id="c", name="patch", input=w("a patch")),
        _item("custom_tool_call_output", call_id="c", output=w("done")),
        tools=[_CUSTOM],
    ),
    "custom tool wanted": _input(tools=[_CUSTOM], tool_choice={"type": "custom", "name": "patch"}),
    "namespace": _input(
        tools=[{"type": "namespace", "name": "files", "description": w("Files"), "tools": [_FUNCTION]}]
    ),
    "search tool": _input(tools=[{"type": "web_search"}]),
    "search tool and another": _input(tools=[{"type": "web_search"}, _FUNCTION]),
    "search tool wanted": _input(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}),
    "some of the tools": _input(
        tools=[_FUNCTION, _CUSTOM],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    ),
    "function called": _input(
        _item("function_call", call_id="c", name="look", arguments='{"q": "x"}'),
        _item("function_call_output", call_id="c", output=w("found")),
        tools=[_FUNCTION],
    ),
    "function called with nothing": _input(
        _item("function_call", call_id="c", name="look", arguments=""),
        _item("function_call_output", call_id="c", output=""),
    ),
    "picture of a function": _input(
        _item("function_call", call_id="c", name="look", arguments="{}"),
        _item(
            "function_call_output", call_id="c", output=[{"type": "input_image", "image_url": _DATA, "detail": "auto"}]
        ),
    ),
    "file of a function": _input(
        _item("function_call", call_id="c", name="look", arguments="{}"),
        _item(
            "function_call_output",
            call_id="c",
            output=[{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}],
        ),
    ),
    "result alone": _input(_item("function_call_output", call_id="c", output=w("found"))),
    "local shell": _run(
        "local_shell_call", {"action": {"type": "exec", "command": ["ls", w("a")], "env": {}}}, w("a.txt"), id="o_1"
    ),
    "shell": _run(
        "shell_call",
        {"action": {"commands": [w("ls")], "timeout_ms": 9}},
        [{"stdout": w("a.txt"), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    ),
    "patch": _run(
        "apply_patch_call",
        {"operation": {"type": "update_file", "path": "a.txt", "diff": w("+a")}},
        w("done"),
        status="completed",
    ),
    "computer": _run(
        "computer_call",
        {"action": {"type": "click", "x": 1, "y": 2, "button": "left"}, "pending_safety_checks": []},
        {"type": "computer_screenshot", "image_url": _DATA},
    ),
    "search of OpenAI": _input(
        _item("web_search_call", id="c", status="completed", action={"type": "search", "query": w("What")})
    ),
    "files found by OpenAI": _input(
        _item(
            "file_search_call",
            id="c",
            status="completed",
            queries=[w("What")],
            results=[{"file_id": "f", "filename": "a.txt", "text": w("found"), "score": 1.0}],
        )
    ),
    "code of OpenAI": _input(
        _item(
            "code_interpreter_call",
            id="c",
            status="completed",
            container_id="x",
            code=w("1+1"),
            outputs=[{"type": "logs", "logs": w("2")}],
        )
    ),
    "tool of MCP": _input(
        _item("mcp_call", id="c", server_label="a", name="look", arguments='{"q": "x"}', output=w("found"))
    ),
    "list of MCP": _input(
        _item(
            "mcp_list_tools",
            id="c",
            server_label="a",
            tools=[{"name": "look", "description": w("Looks"), "input_schema": {}}],
        )
    ),
    "picture of OpenAI": _input(_item("image_generation_call", id="c", status="completed", result=PNG)),
    "compaction": _input(_item("compaction", id="c", encrypted_content="abc")),
    "item of before": _input(_item("item_reference", id="msg_1")),
    "item of tomorrow": _input(_item("hologram", text="x")),
    "picture by id": {
        "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1", "detail": "auto"}]}]
    },
    "file by id": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
    "file by URL": {
        "input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://example.org/a.pdf"}]}]
    },
    "any JSON": _input(text={"format": {"type": "json_object"}}),
    "short words": _input(text={"verbosity": "low"}),
    "summary": _input(reasoning={"effort": "low", "summary": "auto"}),
    "kept thoughts": _input(include=["reasoning.encrypted_content"], store=False),
    "cache and user": _input(
        prompt_cache_key="k", safety_identifier="u", metadata={"a": "b"}, service_tier="auto", truncation="auto"
    ),
    "in the background": _input(background=True),
    "the response before": _input(previous_response_id="resp_1"),
    "conversation": _input(conversation="conv_1"),
    "prompt of OpenAI": _input(prompt={"id": "pmpt_1"}),
    "few calls": _input(tools=[_FUNCTION], max_tool_calls=1, parallel_tool_calls=False),
    "probabilities": _input(include=["message.output_text.logprobs"], top_logprobs=2),
    "nothing": {"input": []},
    "members of tomorrow": _input(extra_body={"mood": "kind"}),
}


def _ollama(*messages: object, **more: object) -> Json:
    return {"messages": [*messages, {"role": "user", "content": w("Hi")}], "stream": False, **more}


_OLLAMA_TOOL: Json = {
    "type": "function",
    "function": {"name": "look", "description": w("Looks"), "parameters": _SCHEMA},
}

OLLAMA: Mapping[str, Json] = {
    "any JSON": _ollama(format="json"),
    "options of a start": _ollama(options={"num_ctx": 4096, "num_gpu": 99, "num_thread": 4}),
    "options of sampling": _ollama(options={"seed": 1, "top_k": 9, "min_p": 0.1, "repeat_penalty": 1.1, "num_keep": 4}),
    "options of tomorrow": _ollama(options={"mood": 1}),
    "stays": _ollama(keep_alive="5m"),
    "probabilities": _ollama(logprobs=True, top_logprobs=2),
    "calls without results": _ollama(
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"q": w("x")}}}]}
    ),
    "result without a name": _ollama(
        {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"q": w("x")}}}]},
        {"role": "tool", "content": w("found")},
        tools=[_OLLAMA_TOOL],
    ),
    "result alone": _ollama({"role": "tool", "tool_name": "look", "content": w("found")}),
    "two results of one name": _ollama(
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "look", "arguments": {"q": w(each)}}} for each in "xy"],
        },
        *({"role": "tool", "tool_name": "look", "content": w(each)} for each in "xy"),
        tools=[_OLLAMA_TOOL],
    ),
    "thinks hard": _ollama(think="high"),
    "empty assistant": _ollama({"role": "assistant", "content": ""}),
    "members of tomorrow": _ollama(
        {"role": "user", "content": w("Hi"), "title": w("Title")}, extra_body={"mood": w("kind")}
    ),
    "words as an option": _ollama(options={"mood": w("kind")}),
    "unknown role": _ollama({"role": "narrator", "content": w("It rains")}),
}

ONLY: Mapping[str, Mapping[str, Json]] = {
    "messages": MESSAGES,
    "responses": RESPONSES,
    "ollama": OLLAMA,
    "chat": CHATS,
}
REFUSED: Mapping[str, frozenset[str]] = {
    "messages": frozenset(
        ("only a system", "document by URL", "document by id", "picture by id", "search tool wanted", "servers of MCP")
    ),
    "responses": frozenset(
        (
            "search tool wanted",
            "item of before",
            "item of tomorrow",
            "picture by id",
            "file by id",
            "file by URL",
            "in the background",
            "the response before",
            "conversation",
            "prompt of OpenAI",
            "nothing",
        )
    ),
    "ollama": frozenset(),
    "chat": frozenset(),
}
