"""Requests of every kind that clients send to chats, each with what is odd about it."""

from __future__ import annotations

Body = dict[str, object]


def say(role: str, content: object, **more: object) -> Body:
    return {"role": role, "content": content, **more}


def call(arguments: object = '{"q": "x"}', identity: object = "abcdefgh1", name: str = "look") -> Body:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def function(parameters: object = None, name: str = "look", **more: object) -> Body:
    found = {"type": "object", "properties": {"q": {"type": "string"}}} if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": found, **more}}


HI = say("user", "Hi")
TOOLS: list[object] = [function()]
LOOKED = [HI, say("assistant", "", tool_calls=[call()]), say("tool", "42", tool_call_id="abcdefgh1")]
SCHEMA: Body = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


OF_AGENTS: Body = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "q": {"type": "string", "minLength": 2, "maxLength": 200, "pattern": "^[a-z]+$"},
        "when": {"type": "string", "format": "date-time"},
        "more": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
        "times": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "shown": {"anyOf": [{"type": "string", "const": "all"}, {"type": "array", "items": {"enum": ["a", "b"]}}]},
        "quick": {"type": "boolean", "default": False},
    },
    "required": ["q"],
    "additionalProperties": False,
}
"""With the words that tools of coding agents have."""


def of_schema(schema: Body, **more: object) -> Body:
    """A chat with a tool whose one member has this schema."""
    return chat(HI, tools=[function({"type": "object", "properties": {"q": schema}}, **more)])


def in_form(schema: Body) -> Body:
    """A chat whose answer has this form."""
    return chat(HI, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


def chat(*messages: Body, **more: object) -> Body:
    return {"messages": list(messages), "max_tokens": 3, "temperature": 0, **more}


def looked(first: object, **more: object) -> Body:
    """A chat in which the tool was called like this."""
    return answered(say("tool", "42", tool_call_id="abcdefgh1"), first, **more)


def answered(result: Body, *calls: object, **more: object) -> Body:
    """A chat in which this is the last thing that was said behind calls."""
    return chat(HI, say("assistant", "", tool_calls=[*calls] or [call()]), result, **more)


OF_CLIENT = ("refusal", "annotations", "audio", "function_call", "parsed")
PARSED = {
    **call(),
    "index": 0,
    "function": {"name": "look", "arguments": '{"q": "x"}', "parsed_arguments": {"q": "x"}},
}
NOTHING: Body = {"type": "object", "properties": {}}

REQUESTS: dict[str, Body] = {
    "plain": chat(HI),
    "system": chat(say("system", "Be kind."), HI),
    "two systems": chat(say("system", "Be kind."), say("system", "Be short."), HI),
    "late system": chat(say("system", "Be kind."), HI, say("assistant", "Hello"), say("system", "Be short."), HI),
    "system last": chat(HI, say("system", "Be short.")),
    "only a system": chat(say("system", "Be kind.")),
    "developer": chat(say("developer", "Be kind."), HI),
    "developer and system": chat(say("system", "Be kind."), say("developer", "Be short."), HI),
    "two users": chat(HI, say("user", "there")),
    "three users": chat(HI, say("user", "there"), say("user", "you")),
    "assistant first": chat(say("assistant", "Hello"), HI),
    "two assistants inside": chat(HI, say("assistant", "One"), say("assistant", "two"), HI),
    "assistant last": chat(HI, say("assistant", "Once")),
    "two assistants last": chat(HI, say("assistant", "One"), say("assistant", "two")),
    "only an assistant": chat(say("assistant", "Once")),
    "no messages": chat(),
    "null messages": {"messages": None, "max_tokens": 3},
    "no content": chat(HI, {"role": "assistant"}, HI),
    "null content": chat(HI, say("assistant", None), HI),
    "empty content": chat(say("user", "")),
    "parts": chat(say("user", [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}])),
    "input_text": chat(say("user", [{"type": "input_text", "text": "Hi"}])),
    "refusal": chat(HI, say("assistant", [{"type": "refusal", "refusal": "No."}]), HI),
    "thinking part": chat(
        HI, say("assistant", [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]), HI
    ),
    "file": chat(
        say("user", [{"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}}])
    ),
    "image": chat(say("user", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}])),
    "sound": chat(say("user", [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}])),
    "number content": chat(say("user", 7)),
    "object content": chat(say("user", {"type": "text", "text": "Hi"})),
    "unknown role": chat(say("narrator", "It rains."), HI),
    "no role": chat({"content": "Hi"}),
    "function role": chat(
        HI,
        say("assistant", None, function_call={"name": "look", "arguments": "{}"}),
        say("function", "42", name="look"),
    ),
    "tools": chat(HI, tools=TOOLS),
    "tools required": chat(HI, tools=TOOLS, tool_choice="required"),
    "tool named": chat(HI, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "look"}}),
    "tool_choice any": chat(HI, tools=TOOLS, tool_choice="any"),
    "tool_choice null": chat(HI, tools=TOOLS, tool_choice=None),
    "tool_choice unknown": chat(HI, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "other"}}),
    "tools null": chat(HI, tools=None),
    "looked": chat(*LOOKED),
    "looked, with tools": chat(*LOOKED, tools=TOOLS),
    "looked, and on": chat(*LOOKED, say("assistant", "It is 42."), HI, tools=TOOLS),
    "broken arguments": looked(call("{")),
    "words as arguments": looked(call("look it up")),
    "empty arguments": looked(call("")),
    "null arguments": looked(call(None)),
    "object arguments": looked(call({"q": "x"})),
    "list arguments": looked(call("[1]")),
    "null id": answered(say("tool", "42", tool_call_id=None), call(identity=None), tools=TOOLS),
    "no id": looked({"type": "function", "function": {"name": "look", "arguments": "{}"}}),
    "short id": looked(call(identity="a")),
    "number id": looked(call(identity=7)),
    "result alone": chat(HI, say("tool", "42", tool_call_id="abcdefgh1")),
    "two results": chat(
        HI,
        say("assistant", "", tool_calls=[call(), call(identity="abcdefgh2")]),
        say("tool", "42", tool_call_id="abcdefgh1"),
        say("tool", "43", tool_call_id="abcdefgh2"),
        tools=TOOLS,
    ),
    "result of parts": answered(say("tool", [{"type": "text", "text": "42"}], tool_call_id="abcdefgh1")),
    "result null": answered(say("tool", None, tool_call_id="abcdefgh1")),
    "reasoning and calls": chat(
        HI,
        say("assistant", "Let me see.", thinking="Hm", reasoning_content="Hm", tool_calls=[call()]),
        say("tool", "42", tool_call_id="abcdefgh1"),
        tools=TOOLS,
    ),
    "message of OpenAI's client": chat(
        HI,
        say("assistant", "Let me see.", tool_calls=[PARSED], **dict.fromkeys(OF_CLIENT)),
        say("tool", "42", tool_call_id="abcdefgh1"),
        tools=TOOLS,
        store=False,
    ),
    "flat tools": chat(HI, tools=[{"type": "function", "name": "look", "parameters": NOTHING}]),
    "Anthropic's tools": chat(HI, tools=[{"name": "look", "description": "Looks.", "input_schema": NOTHING}]),
    "no parameters": chat(HI, tools=[{"type": "function", "function": {"name": "look"}}]),
    "null parameters": chat(
        HI, tools=[{"type": "function", "function": {"name": "look", "parameters": None, "strict": None}}]
    ),
    "server's tools": chat(HI, tools=[{"type": "web_search"}, function()]),
    "tool without a name": chat(HI, tools=[{"type": "function", "function": {"parameters": {}}}]),
    "bad pattern": of_schema({"type": "string", "pattern": "^(?=a)b"}),
    "bad pattern, strict": of_schema({"type": "string", "pattern": "^(?=a)b"}, strict=True),
    "unknown type": of_schema({"type": "date"}),
    "missing ref": of_schema({"$ref": "#/$defs/none"}),
    "remote ref": of_schema({"$ref": "https://example.org/q"}),
    "schema of an agent": chat(HI, tools=[function(OF_AGENTS)]),
    "large bounds": of_schema({"type": "string", "maxLength": 100000}),
    "large items": of_schema({"type": "array", "items": {"type": "string"}, "minItems": 5000}),
    "schema a list": chat(HI, tools=[function([])]),
    "json_object": chat(HI, response_format={"type": "json_object"}),
    "json_schema": in_form(SCHEMA),
    "json_schema with bad pattern": in_form(
        {"type": "object", "properties": {"q": {"type": "string", "pattern": "(?!a)b"}}}
    ),
    "json_schema of Responses": chat(HI, response_format={"type": "json_schema", "name": "a", "schema": SCHEMA}),
    "format as text": chat(HI, response_format="json_object"),
    "format null": chat(HI, response_format=None),
    "format unknown": chat(HI, response_format={"type": "xml"}),
    "format and tools": chat(HI, tools=TOOLS, response_format={"type": "json_object"}),
    "thinking off": chat(HI, chat_template_kwargs={"enable_thinking": False}),
    "template_kwargs null": chat(HI, chat_template_kwargs=None),
    "effort": chat(HI, reasoning_effort="high"),
    "grammar bad": chat(HI, grammar="root ::= ("),
    "too long": chat(say("user", "word " * 9000)),
    "number as text": chat(HI, temperature="0.5"),
    "stop as text": chat(HI, stop="x"),
    "stop null": chat(HI, stop=None),
    "stream options null": chat(HI, stream_options=None),
    "logit bias null": chat(HI, logit_bias=None),
    "top_logprobs alone": chat(HI, top_logprobs=2),
    "n two": chat(HI, n=2),
}
