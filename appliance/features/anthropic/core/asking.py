"""Requests of Anthropic's Messages as llama-server's chat completions.

Everything that llama-server's own ``/v1/messages`` does (b11434, ``server-chat.cpp``) is done here, in the same way
where nothing speaks against it. `members` says what becomes of each member.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.lenient_json import UNREADABLE
from appliance.errors import BadRequest
from appliance.features.anthropic.core.contents import Contents
from appliance.features.anthropic.core.members import CLIENT_TOOLS, SERVER_TOOLS
from appliance.features.anthropic.core.reading import Notes, list_in, number_of, object_in, text_of, unknown

DEFAULT_MAX_TOKENS, DEFAULT_BUDGET = 4096, 10000
"""llama-server's, for requests that lack them."""
_MOST = (1 << 31) - 1
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
_ANY_OBJECT: JsonObject = {"type": "object", "properties": {}}


class AskedMessage(Struct, frozen=True, kw_only=True):
    """The request in llama-server's words. ``stops`` are the client's stop sequences, ``ignored`` the noted members.

    ``unread`` has the name and the content of each document without a text, by its member.
    """

    body: bytes
    model: str
    stops: tuple[str, ...]
    ignored: tuple[str, ...]
    unread: Mapping[str, tuple[str, bytes]]


def read_members(body: bytes) -> JsonObject:
    """Return the members of a request that are not null. Raises BadRequest."""
    try:
        return {
            name: value
            for name, value in OBJECT.decode(body.removeprefix(b"\xef\xbb\xbf")).items()
            if value is not None
        }
    except UNREADABLE as error:
        raise BadRequest(f"the request body is not a JSON object: {error}") from None


def chat_body(members: JsonObject, *, counts: bool, sees: bool, texts: Mapping[str, str]) -> AskedMessage:
    """Return the request for a chat completion. Raises BadRequest.

    ``counts``: it only asks for the number of tokens. ``sees``: the model may know images. ``texts``: those of
    documents, by their members.
    """
    try:
        return _chat_body(members, counts=counts, sees=sees, texts=texts)
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
    except OverflowError as error:
        raise BadRequest(f"the request body has a number that cannot be passed on: {error}") from None


def _chat_body(members: JsonObject, *, counts: bool, sees: bool, texts: Mapping[str, str]) -> AskedMessage:
    notes = Notes()
    sent = notes.rest("request", members)
    if (model := members.get("model")) is not None:
        sent["model"] = model
    contents = Contents(notes, texts, sees=sees)
    sent["messages"] = contents.messages(members)
    sent |= _tools(members, notes) | _thinking(members, notes) | _shape(members, notes)
    for name in ("temperature", "top_p", "top_k"):
        if name in members:
            sent[name] = number_of(members[name], name)
    stops = _stops(members.get("stop_sequences", []))
    if not counts:
        sent["max_tokens"] = _tokens(members.get("max_tokens", DEFAULT_MAX_TOKENS), "max_tokens")
        sent["stream"] = members.get("stream") is True
    if sent.get("stream"):
        # The first tells the tokens at the end, the second those of the prompt at the beginning, where Messages want
        # them.
        sent |= {"stream_options": {"include_usage": True}, "return_progress": True}
    if stops:
        # A chat completion says only there which of them has ended it.
        sent |= {"stop": [*stops], "verbose": True, "response_fields": ["stopping_word"]}
    return AskedMessage(
        body=msgspec.json.encode(sent),
        model=str(model or ""),
        stops=stops,
        ignored=notes.told,
        unread=contents.unread,
    )


def _tokens(value: JSON, where: str) -> int:
    """Return a number of tokens; -1 means no limit."""
    count = number_of(value, where)
    if count < -1 or count != int(count):
        raise BadRequest(f"'{where}' must be a whole number, -1 or more, not {count}", param=where)
    return min(int(count), _MOST)


def _stops(given: JSON) -> tuple[str, ...]:
    """Return the stop sequences. One that is empty would end every answer at once."""
    listed = [given] if isinstance(given, str) else list_in(given, "stop_sequences")
    return tuple(text for at, one in enumerate(listed) if (text := text_of(one, f"stop_sequences[{at}]")))


# ---- tools -----------------------------------------------------------------------------------------------------------


def _tools(members: JsonObject, notes: Notes) -> JsonObject:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls``, as far as there are any."""
    made: dict[str, JsonObject] = {}
    for at, given in enumerate(list_in(members.get("tools", []), "tools")):
        made |= _tool(object_in(given, f"tools[{at}]"), f"tools[{at}]", notes)
    sent: JsonObject = {}
    if (wish := members.get("tool_choice")) is not None:
        choice = object_in({"type": wish} if isinstance(wish, str) else wish, "tool_choice")
        notes.take("tool_choice", choice, "tool_choice")
        kind = text_of(choice.get("type"), "tool_choice.type")
        if kind not in _CHOICES:
            raise unknown("tool_choice.type", ", ".join(_CHOICES), kind)
        if kind == "tool":  # llama-server knows no choice of one tool, but that of any
            name = text_of(choice.get("name"), "tool_choice.name")
            for other in made if name in made else ():
                if other != name:
                    notes.add("tools", other)
            made = {name: made[name]} if name in made else {}
        if kind in ("any", "tool") and not made:
            why = "the request has no such tool, or Anthropic's servers run it"
            raise BadRequest(f"'tool_choice' wants a tool that the model cannot get: {why}", param="tool_choice")
        sent["tool_choice"] = _CHOICES[kind]
        if choice.get("disable_parallel_tool_use") is True:
            sent["parallel_tool_calls"] = False
    return {**sent, "tools": [{"type": "function", "function": each} for each in made.values()]} if made else {}


def _tool(tool: JsonObject, where: str, notes: Notes) -> dict[str, JsonObject]:
    """Return the function by its name; nothing for a tool that Anthropic's servers would run."""
    kind = text_of(tool.get("type") or "custom", f"{where}.type")
    if kind == "function":  # OpenAI's form
        function = object_in(tool.get("function"), f"{where}.function")
        return {text_of(function.get("name"), f"{where}.function.name", empty=False): function}
    if kind.startswith(tuple(SERVER_TOOLS)):
        notes.add("tool", kind)
        return {}
    built_in = next((each for prefix, each in CLIENT_TOOLS.items() if kind.startswith(prefix)), None)
    given = tool.get("input_schema")
    if kind != "custom" and built_in is None and given is None:
        notes.add("tool", kind)
    notes.take("tools", tool, where)
    words, schema = built_in or ("", _ANY_OBJECT)
    name = text_of(tool.get("name"), f"{where}.name", empty=False)
    said = text_of(tool.get("description"), f"{where}.description") or words
    function: JsonObject = {"name": name, "description": said}
    function["parameters"] = schema if given is None else object_in(given, f"{where}.input_schema")
    if tool.get("strict") is True:
        function["strict"] = True
    return {name: function}


# ---- thoughts, and the form of the answer ----------------------------------------------------------------------------


def _thinking(members: JsonObject, notes: Notes) -> JsonObject:
    """Return ``chat_template_kwargs``, ``thinking_budget_tokens`` and ``reasoning_effort``, as far as there are any."""
    sent, kwargs = JsonObject(), JsonObject()
    if (given := members.get("thinking")) is not None:
        config = object_in(given, "thinking")
        notes.take("thinking", config, "thinking")
        kind = text_of(config.get("type"), "thinking.type")
        if kind not in _THINKS:
            raise unknown("thinking.type", ", ".join(_THINKS), kind)
        kwargs["enable_thinking"] = _THINKS[kind]
        if kind == "enabled":
            budget = config.get("budget_tokens")
            where = "thinking.budget_tokens"
            sent["thinking_budget_tokens"] = _tokens(DEFAULT_BUDGET if budget is None else budget, where)
    if kwargs := kwargs | object_in(members.get("chat_template_kwargs", {}), "chat_template_kwargs"):
        sent["chat_template_kwargs"] = kwargs
    effort = object_in(members.get("output_config", {}), "output_config").get("effort")
    if effort is not None and "reasoning_effort" not in members:
        word = text_of(effort, "output_config.effort")
        if word not in _EFFORTS:
            raise unknown("output_config.effort", ", ".join(_EFFORTS), word)
        sent["reasoning_effort"] = _EFFORTS[word]
    return sent


def _shape(members: JsonObject, notes: Notes) -> JsonObject:
    """Return ``response_format``; nothing where the answer may be any text."""
    config = object_in(members.get("output_config", {}), "output_config")
    notes.take("output_config", config, "output_config")
    where, given = "output_config.format", config.get("format")
    if given is None:
        where, given = "output_format", members.get("output_format")
    if given is None:
        return {}
    wanted = object_in(given, where)
    if (kind := text_of(wanted.get("type"), f"{where}.type")) != "json_schema":
        raise unknown(f"{where}.type", "json_schema", kind)
    schema = object_in(wanted.get("schema"), f"{where}.schema")
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
    }
