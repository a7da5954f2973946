"""A request of the Responses API as one for llama-server's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import NO_PARAMETERS
from appliance.errors import BadRequest
from appliance.features.responses.core.items import ChatMessages, Known, chat_name
from appliance.features.responses.core.members import (
    MEMBERS,
    TOOLS,
    TRUTH,
    check_kind,
    checked,
    list_of,
    not_one_of,
    object_of,
    text_of,
)

MAX_TOKENS = (1 << 31) - 1
MAX_TOP_LOGPROBS = 20
_SAME = ("model", "temperature", "top_p", "parallel_tool_calls", "prompt_cache_key")
_LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_EFFORT, _SUMMARIES = "effort", ("summary", "generate_summary")
_KNOWN = (_EFFORT, *_SUMMARIES)
_ANY: JsonObject = msgspec.json.decode(NO_PARAMETERS)
_TEXT: JsonObject = {"type": "string", "description": "The whole input of the tool, as plain text."}
_INPUT: JsonObject = {"type": "object", "properties": {"input": _TEXT}, "required": ["input"]}


NO_TEXTS: Mapping[str, str] = {}
_TYPED: JsonObject = {"parameters": None, "strict": None}


class ToolName(Struct, frozen=True):
    """A tool as the client knows it; `chat_name` makes the model's name of it."""

    name: str
    namespace: str = ""
    custom: bool = False


class AskedResponse(Struct, frozen=True, kw_only=True):
    """A request, translated."""

    chat: JsonObject
    """The body for the chat completion."""
    model: str
    ignored: Sequence[str]
    """The places of what has no effect."""
    echo: JsonObject
    """The members of the request that every response repeats."""
    tools: Mapping[str, ToolName]
    """By their names in the chat."""
    summarises: bool
    """The reasoning comes as a summary."""
    hides: bool
    """The reasoning also comes as ``encrypted_content``."""
    stores: bool
    """The client may refer to the items of the response."""
    unread: Mapping[str, tuple[str, bytes]]
    """The name and the content of each file without a text, by its member."""

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.chat)


def read_members(body: bytes) -> JsonObject:
    """Return the members of a request. Raises BadRequest."""
    try:
        return OBJECT.decode(body.removeprefix(b"\xef\xbb\xbf"))
    except UNREADABLE as error:
        raise BadRequest(f"the request body is not a JSON object: {error}") from None


def asked_of(
    members: JsonObject, *, streams: bool, texts: Mapping[str, str] = NO_TEXTS, known: Known = lambda _: None
) -> AskedResponse:
    """Translate a request whose answer streams or not. Raises BadRequest that names the member.

    ``texts`` are those of PDF and Word files, by their members. ``known``: see `ChatMessages`.
    """
    given = checked(members)
    ignored = [name for name in given if name in MEMBERS and MEMBERS[name].treatment == "ignored"]
    chat = {name: value for name, value in given.items() if name not in MEMBERS}
    if chat.pop("n", 1) != 1 or chat.pop("n_cmpl", 1) != 1:
        raise BadRequest("'n' is not supported: a response is one answer", param="n")
    if "input" not in given:
        raise BadRequest("'input' is required", param="input")
    messages = ChatMessages(ignored, texts, known)
    if instructions := given.get("instructions"):
        messages.add(instructions, "instructions", "system")
    messages.add(given["input"], "input")
    if not messages.messages:
        raise BadRequest("'input' has no messages", param="input")
    chat |= {"messages": list[JSON](messages.messages), "stream": streams}
    if streams:
        chat["stream_options"] = {"include_usage": True}
    tools = _Tools(given, ignored)
    chat |= tools.chosen(given.get("tool_choice", "auto"))
    chat |= {name: given[name] for name in _SAME if name in given}
    if (most := given.get("max_output_tokens")) is not None:
        if not isinstance(most, int) or most < -1:
            raise BadRequest(f"'max_output_tokens' must be -1 or more, not {most}", param="max_output_tokens")
        chat["max_tokens"] = min(most, MAX_TOKENS)
    text, reasoning = object_of(given.get("text", {}), "text"), object_of(given.get("reasoning", {}), "reasoning")
    chat |= _format(text.get("format"))
    if effort := reasoning.get(_EFFORT):
        chat["reasoning_effort"] = text_of(effort, f"reasoning.{_EFFORT}")
    includes = [text_of(one, f"include[{at}]") for at, one in enumerate(list_of(given.get("include", []), "include"))]
    chat |= _logprobs(
        given.get("top_logprobs"), ignored, wanted=_LOGPROBS in includes, barred=streams and "tools" in chat
    )
    ignored += [f"text.{name}" for name, value in text.items() if name != "format" and value is not None]
    ignored += [f"reasoning.{name}" for name, value in reasoning.items() if name not in _KNOWN and value is not None]
    return AskedResponse(
        chat=chat,
        model=str(given.get("model", "")),
        ignored=ignored,
        echo=_echo(given, text),
        tools=tools.names,
        summarises=any(reasoning.get(name) is not None for name in _SUMMARIES),
        hides=ENCRYPTED in includes,
        stores=given.get("store") is not False,
        unread=messages.unread,
    )


def _logprobs(top: JSON, ignored: list[str], *, wanted: bool, barred: bool) -> JsonObject:
    if top is not None and not (isinstance(top, int) and 0 <= top <= MAX_TOP_LOGPROBS):
        raise BadRequest(f"'top_logprobs' must be between 0 and {MAX_TOP_LOGPROBS}, not {top}", param="top_logprobs")
    if not top and not wanted:
        return {}
    if barred:  # llama-server refuses it
        ignored.append("top_logprobs" if top else f"include ({_LOGPROBS})")
        return {}
    return {"logprobs": True, "top_logprobs": top or 1}


def _format(given: JSON) -> JsonObject:
    """The form of the text. Raises BadRequest."""
    path = "text.format"
    form = {} if given is None else object_of(given, path)
    match form.get("type"):
        case None | "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            inner = form.get("json_schema")
            said = inner if isinstance(inner, dict) else form  # as in a chat completion
            schema = object_of(said.get("schema"), f"{path}.schema")
            wanted = {name: said[name] for name in ("name", "description", "strict") if said.get(name) is not None}
            return {"response_format": {"type": "json_schema", "json_schema": {**wanted, "schema": schema}}}
        case other:
            raise not_one_of(other, f"{path}.type", ("text", "json_object", "json_schema"))


def _echo(given: JsonObject, text: JsonObject) -> JsonObject:
    """The members that every response has, as OpenAI's types want them."""
    form = text.get("format")
    echoed = ("max_output_tokens", "temperature", "top_p", "top_logprobs", "user", "safety_identifier")
    return {
        "background": False,
        "instructions": given.get("instructions"),
        **{name: given.get(name) for name in (*echoed, "prompt_cache_key", "max_tool_calls")},
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {_EFFORT: None, "summary": None, **object_of(given.get("reasoning", {}), "reasoning")},
        "service_tier": "default",
        "store": False,
        "text": {**text, "format": {"type": "text"} if form is None else form},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            {**(_TYPED if tool.get("type") == "function" else {}), **tool} if isinstance(tool, dict) else tool
            for tool in list_of(given.get("tools", []), "tools")
        ],
        "truncation": "disabled",
    }


class _Tools:
    """The tools of a request as functions. Raises BadRequest."""

    def __init__(self, given: JsonObject, ignored: list[str]) -> None:
        self.names: dict[str, ToolName] = {}
        self._functions: dict[str, JsonObject] = {}
        self._left_out: set[str] = set()
        self._ignored = ignored
        for number, tool in enumerate(list_of(given.get("tools", []), "tools")):
            self._add(object_of(tool, f"tools[{number}]"), f"tools[{number}]", "")

    def _add(self, tool: JsonObject, path: str, namespace: str) -> None:
        kind = text_of(tool.get("type"), f"{path}.type")
        if kind not in TOOLS:
            self._left_out.add(kind)
            self._ignored.append(f"{path} ({kind})")
            return
        inner = tool.get("function")
        said = inner if kind == "function" and isinstance(inner, dict) else tool  # as in a chat completion
        name = text_of(said.get("name"), f"{path}.name")
        if not name:
            raise BadRequest(f"'{path}.name' is empty", param=f"{path}.name")
        if kind == "namespace":
            self._ignored += [f"{path}.description"] if said.get("description") else []
            for number, one in enumerate(list_of(said.get("tools"), f"{path}.tools")):
                self._add(object_of(one, f"{path}.tools[{number}]"), f"{path}.tools[{number}]", name)
            return
        told = chat_name(name, namespace)
        self.names[told] = ToolName(name, namespace, kind == "custom")
        function: JsonObject = {"name": told}
        if kind == "custom":
            function |= {"description": _custom(said, path), "parameters": _INPUT}
        else:
            parameters = said.get("parameters")
            function["parameters"] = _ANY if parameters is None else object_of(parameters, f"{path}.parameters")
            if (description := said.get("description")) is not None:
                function["description"] = text_of(description, f"{path}.description")
            if (strict := said.get("strict")) is not None:
                check_kind(strict, f"{path}.strict", TRUTH)
                function["strict"] = strict
        self._functions[told] = function

    def chosen(self, choice: JSON) -> JsonObject:
        """Return the members of the chat for these tools and this choice among them.

        llama-server knows no choice of one tool: it gets that tool alone, and has to call one.
        """
        wanted, mode = list(self._functions), choice
        if isinstance(choice, dict):
            wanted, mode = self._picked(choice)
        elif choice not in ("none", "auto", "required"):
            raise not_one_of(choice, "tool_choice", ("none", "auto", "required", "an object"))
        if mode == "required" and not wanted:
            raise BadRequest("'tool_choice' requires a call, and no tool is there to be called", param="tool_choice")
        if not wanted:
            return {}
        self._ignored += [f"tools ({name})" for name in self._functions if name not in wanted]
        tools: list[JSON] = [{"type": "function", "function": self._functions[name]} for name in wanted]
        return {"tools": tools} if mode == "auto" else {"tools": tools, "tool_choice": mode}

    def _picked(self, choice: JsonObject) -> tuple[list[str], JSON]:
        path = "tool_choice"
        if choice.get("type") != "allowed_tools":
            return [self._named(choice, path)], "required"
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise not_one_of(mode, f"{path}.mode", ("auto", "required"))
        found = [
            self._named(object_of(one, f"{path}.tools[{number}]"), f"{path}.tools[{number}]", strict=False)
            for number, one in enumerate(list_of(choice.get("tools"), f"{path}.tools"))
        ]
        return list(dict.fromkeys(name for name in found if name)), mode

    def _named(self, choice: JsonObject, path: str, *, strict: bool = True) -> str:
        """The chat's name of the tool that a choice names; empty for one that is left out, where that may be."""
        kind = text_of(choice.get("type"), f"{path}.type")
        inner = choice.get("function")
        said = inner if isinstance(inner, dict) else choice
        if kind not in ("function", "custom"):
            if strict or kind not in self._left_out:
                raise BadRequest(f"'{path}' names {kind}, a tool that is not run here", param=path)
            return ""
        name = chat_name(text_of(said.get("name"), f"{path}.name"), said.get("namespace"))
        if name in self._functions:
            return name
        raise BadRequest(f"'{path}.name' names {name!r}, and 'tools' has no such {kind} tool", param=f"{path}.name")


def _custom(tool: JsonObject, path: str) -> str:
    """The description of a custom tool, with its grammar: the model gets it to read."""
    described = tool.get("description")
    described = "" if described is None else text_of(described, f"{path}.description")
    given = tool.get("format")
    form = {} if given is None else object_of(given, f"{path}.format")
    if form.get("type") != "grammar":
        return described
    syntax, definition = (text_of(form.get(name), f"{path}.format.{name}") for name in ("syntax", "definition"))
    return f"{described}\n\nThe input has to match this {syntax} grammar:\n{definition}".strip()
