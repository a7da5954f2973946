"""Requests that exist in one dialect alone: the arguments of its official client's call, with what becomes of them.

`REFUSED` are the ones that get a 4xx, whatever the model can do.
"""

from __future__ import annotations

from collections.abc import Mapping

from asked_chats import REQUESTS as CHATS
from message_requests import MESSAGES, SCHEMA
from neutral import PNG, Json, w


def _item(kind: str, **more: object) -> Json:
    return {"type": kind, **more}


def _input(*items: object, **more: object) -> Json:
    return {"input": [*items, {"role": "user", "content": w("Hi")}], "max_output_tokens": 3, **more}


def _said(role: str, *texts: str, **more: object) -> Json:
    return _item("message", role=role, content=[_item("input_text", text=w(text)) for text in texts], **more)


def _answered(part: Json) -> Json:
    return _item("message", id="m", status="completed", role="assistant", content=[part])


def _thought(*summary: Json, **more: object) -> Json:
    return _item("reasoning", id="r", summary=list(summary), **more)


def _look(output: object, arguments: str = "{}", **more: object) -> Json:
    """A function that was called, and its output."""
    called = _item("function_call", call_id="c", name="look", arguments=arguments)
    return _input(called, _item("function_call_output", call_id="c", output=output), **more)


def _run(kind: str, given: Json, output: object, **more: object) -> Json:
    """A call of a tool of this kind, and its output."""
    return _input(
        _item(kind, id="c_1", call_id="call_1", status="completed", **given),
        _item(f"{kind}_output", call_id="call_1", output=output, **more),
    )


def _part(kind: str, **more: object) -> Json:
    return {"input": [{"role": "user", "content": [_item(kind, **more)]}]}


_CUSTOM: Json = {"type": "custom", "name": "patch", "description": w("Patches")}
_GRAMMAR: Json = {**_CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": f"start: /{w('a')}/"}}
_PLAIN: Json = {"name": "look", "description": w("Looks"), "parameters": SCHEMA}
_FUNCTION: Json = {"type": "function", "strict": False, **_PLAIN}
_NAMESPACE: Json = {"type": "namespace", "name": "files", "description": w("Files"), "tools": [_FUNCTION]}
_OF_AGENT: Json = {
    "tools": [_FUNCTION, _NAMESPACE, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "extra_body": {"client_metadata": {"session_id": "s"}},
}
_DATA = f"data:image/png;base64,{PNG}"
_SUMMARY: Json = {"type": "summary_text", "text": w("Hm")}

RESPONSES: Mapping[str, Json] = {
    "one text": {"input": w("Hi"), "max_output_tokens": 3},
    "instructions": {"input": w("Hi"), "instructions": w("Be kind"), "max_output_tokens": 3},
    "message without a type": _input({"role": "assistant", "content": w("Hello")}),
    "developer": _input(_said("developer", "Be short"), instructions=w("Be kind")),
    "first turn of an agent": _input(
        _said("developer", "Be kind", id="msg_1"),
        _said("developer", "May write", "Be short", id="msg_2"),
        _said("user", "Today", id="msg_3"),
        **_OF_AGENT,
    ),
    "second turn of an agent": _input(
        _said("user", "Hi", id="msg_3"),
        _thought(_SUMMARY, encrypted_content="plain.SG0=", status="completed"),
        _answered({"type": "output_text", "text": w("I look"), "annotations": [], "logprobs": []}),
        _item("function_call", id="fc_2", status="completed", call_id="c", name="look", arguments='{"q": "x"}'),
        _item("function_call_output", id="fco_1", call_id="c", output=w("found")),
        **_OF_AGENT,
    ),
    "refusal": _input(_answered({"type": "refusal", "refusal": w("No")})),
    "thoughts with text": _input(_thought(content=[{"type": "reasoning_text", "text": w("Hm")}])),
    "thoughts of OpenAI": _input(_thought(encrypted_content="gAAAAabc")),
    "thoughts hidden here": _input(_thought(encrypted_content="plain.SG0=")),
    "custom tool": _input(tools=[_CUSTOM]),
    "custom tool with a grammar": _input(tools=[_GRAMMAR]),
    "custom tool called": _input(
        _item("custom_tool_call", call_id="c", name="patch", input=w("a patch")),
        _item("custom_tool_call_output", call_id="c", output=w("done")),
        tools=[_CUSTOM],
    ),
    "custom tool wanted": _input(tools=[_CUSTOM], tool_choice={"type": "custom", "name": "patch"}),
    "namespace": _input(tools=[_NAMESPACE]),
    "search tool": _input(tools=[{"type": "web_search"}]),
    "search tool and another": _input(tools=[{"type": "web_search"}, _FUNCTION]),
    "search tool wanted": _input(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}),
    "some of the tools": _input(
        tools=[_FUNCTION, _CUSTOM],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    ),
    "function called": _look(w("found"), '{"q": "x"}', tools=[_FUNCTION]),
    "function called with nothing": _look("", ""),
    "picture of a function": _look([{"type": "input_image", "image_url": _DATA, "detail": "auto"}]),
    "file of a function": _look(
        [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}]
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
    "picture by id": _part("input_image", file_id="file_1", detail="auto"),
    "file by id": _part("input_file", file_id="file_1"),
    "file by URL": _part("input_file", file_url="https://example.org/a.pdf"),
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
    options = {"num_predict": 3, **more.pop("options", {})}
    return {"messages": [*messages, {"role": "user", "content": w("Hi")}], "stream": False, "options": options, **more}


def _calls(*words: str, **more: object) -> Json:
    called = [{"function": {"name": "look", "arguments": {"q": w(word)}}} for word in words]
    return {"role": "assistant", "tool_calls": called, **more}


def _found(word: str = "found", **more: object) -> Json:
    return {"role": "tool", "content": w(word), **more}


_OLLAMA_TOOL: Json = {"type": "function", "function": _PLAIN}

OLLAMA: Mapping[str, Json] = {
    "any JSON": _ollama(format="json"),
    "options of a start": _ollama(options={"num_ctx": 4096, "num_gpu": 99, "num_thread": 4}),
    "options of sampling": _ollama(options={"seed": 1, "top_k": 9, "min_p": 0.1, "repeat_penalty": 1.1, "num_keep": 4}),
    "options of tomorrow": _ollama(options={"mood": 1}),
    "stays": _ollama(keep_alive="5m"),
    "probabilities": _ollama(logprobs=True, top_logprobs=2),
    "calls without results": _ollama(_calls("x", content="")),
    "result without a name": _ollama(_calls("x"), _found(), tools=[_OLLAMA_TOOL]),
    "result alone": _ollama(_found(tool_name="look")),
    "two results of one name": _ollama(
        _calls("x", "y"), _found("x", tool_name="look"), _found("y", tool_name="look"), tools=[_OLLAMA_TOOL]
    ),
    "thinks hard": _ollama(think="high"),
    "empty assistant": _ollama({"role": "assistant", "content": ""}),
    "members of tomorrow": _ollama(
        {"role": "user", "content": w("Hi"), "title": w("Title")}, extra_body={"mood": w("kind")}
    ),
    "words as an option": _ollama(options={"mood": w("kind")}),
    "unknown role": _ollama({"role": "narrator", "content": w("It rains")}),
}

ONLY: Mapping[str, Mapping[str, Json]] = {"messages": MESSAGES, "responses": RESPONSES, "ollama": OLLAMA, "chat": CHATS}
OF_MESSAGES = (
    "only a system, document by URL, document by id, picture by id, search tool wanted, servers of MCP, thread"
)
OF_RESPONSES = (
    "search tool wanted, item of before, item of tomorrow, picture by id, file by id, file by URL, nothing, "
    "in the background, the response before, conversation, prompt of OpenAI"
)
REFUSED: Mapping[str, frozenset[str]] = {
    "messages": frozenset(OF_MESSAGES.split(", ")),
    "responses": frozenset(OF_RESPONSES.split(", ")),
    "ollama": frozenset(),
    "chat": frozenset(),
}
