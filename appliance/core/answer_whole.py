"""Turns a streamed answer into the whole answer of the same route: joins the deltas, in each of the dialects.

Deltas of OpenAI's routes and llama.cpp's own are joined member by member: texts and lists grow, single facts are
replaced. An engine's additions to them are therefore joined like the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.core.decoding import decoded
from appliance.core.json_values import JSON, OBJECT, JsonObject
from appliance.core.slash import Family

_FACTS = frozenset(
    ("id", "object", "model", "role", "type", "name", "finish_reason", "system_fingerprint", "stop_type")
)
"""Texts that are replaced, not continued: the last one counts."""


class Torn(ValueError):
    """The events are not a whole answer; the message says what is missing."""


def whole_of(family: Family, events: Iterable[JsonObject]) -> JsonObject:
    """Return the answer that these events are parts of; it uses up the events' objects. Raises Torn."""
    parts = list(events)
    if not parts:
        raise Torn("the stream has no events")
    match family:
        case Family.MESSAGES:
            return _message(parts)
        case Family.RESPONSES:
            return _response(parts)
        case Family.CHAT | Family.COMPLETION:
            if any("choices" in part for part in parts):
                return _choices(parts, chat=family is Family.CHAT)
            return _native(parts)


def _choices(parts: list[JsonObject], *, chat: bool) -> JsonObject:
    whole: JsonObject = {}
    found: dict[int, JsonObject] = {}
    for part in parts:
        given = part.pop("choices", None)
        for choice in given if isinstance(given, list) else []:
            if isinstance(choice, dict):
                at = choice.get("index")
                _join(found.setdefault(at if isinstance(at, int) else 0, {}), choice)
        for name, value in part.items():
            if value is not None:
                whole[name] = value
    choices: list[JSON] = [_chat_choice(found[at]) if chat else found[at] for at in sorted(found)]
    if not choices:
        raise Torn("no event of the stream has a choice")
    if chat:
        whole["object"] = "chat.completion"
    return {"choices": choices, **whole}


def _chat_choice(choice: JsonObject) -> JsonObject:
    """Turn ``delta`` into ``message``; calls of tools lose the index that identified their parts."""
    delta = choice.pop("delta", None)
    message: JsonObject = {"role": "assistant", "content": None}
    if isinstance(delta, dict):
        message |= delta
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            if isinstance(call, dict):
                call.pop("index", None)
    return {**choice, "message": message}


def _native(parts: list[JsonObject]) -> JsonObject:
    """llama.cpp's own ``/completion``: the last event has everything except the text."""
    whole: JsonObject = {}
    for part in parts:
        if part.get("index", 0) != whole.get("index", part.get("index", 0)):
            raise Torn("the stream answers several prompts at once")
        _join(whole, part)
    return whole


def _join(into: JsonObject, part: JsonObject) -> None:
    for name, value in part.items():
        before = into.get(name)
        if isinstance(before, str) and isinstance(value, str) and name not in _FACTS:
            into[name] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _extend(before, value)
        elif value is not None or name not in into:
            into[name] = value


def _extend(before: list[JSON], more: list[JSON]) -> None:
    """An element with an ``index`` continues the one with the same index."""
    for item in more:
        at = item.get("index") if isinstance(item, dict) else None
        known = next(
            (old for old in before if at is not None and isinstance(old, dict) and old.get("index") == at), None
        )
        if isinstance(known, dict) and isinstance(item, dict):
            _join(known, item)
        else:
            before.append(item)


# ---- Anthropic -------------------------------------------------------------------------------------------------------

_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def _message(parts: list[JsonObject]) -> JsonObject:
    message: JsonObject | None = None
    blocks: dict[int, JsonObject] = {}
    inputs: dict[int, str] = {}
    for part in parts:
        at = part.get("index")
        at = at if isinstance(at, int) else 0
        match part:
            case {"type": "message_start", "message": dict(started)}:
                message = started
            case {"type": "content_block_start", "content_block": dict(block)}:
                blocks[at] = block
            case {"type": "content_block_delta", "delta": dict(delta)} if at in blocks:
                _grow(blocks[at], delta, inputs, at)
            case {"type": "message_delta"} if message is not None:
                _join(message, {name: part[name] for name in ("usage",) if name in part})
                changed = part.get("delta")
                message |= changed if isinstance(changed, dict) else {}
            case _:
                pass
    if message is None:
        raise Torn("the stream has no message_start")
    for at, text in inputs.items():
        blocks[at]["input"] = _parsed(text)
    message["content"] = [blocks[at] for at in sorted(blocks)]
    return message


def _grow(block: JsonObject, delta: JsonObject, inputs: dict[int, str], at: int) -> None:
    kind = delta.get("type")
    name = _GROWS.get(kind) if isinstance(kind, str) else None
    if name is not None:
        block[name] = _text(block.get(name)) + _text(delta.get(name))
    elif kind == "input_json_delta":
        inputs[at] = inputs.get(at, "") + _text(delta.get("partial_json"))
    elif kind == "citations_delta":
        before = block.get("citations")
        block["citations"] = [*(before if isinstance(before, list) else []), delta.get("citation")]


def _parsed(text: str) -> JSON:
    parsed = decoded(OBJECT, text) if text else {}
    if parsed is None:
        raise Torn("the stream has a tool call whose input is not a JSON object")
    return parsed


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


# ---- OpenAI Responses ------------------------------------------------------------------------------------------------

ENDS = ("response.completed", "response.incomplete", "response.failed")


def _response(parts: list[JsonObject]) -> JsonObject:
    """The last event has the whole answer."""
    for part in reversed(parts):
        response = part.get("response")
        if part.get("type") in ENDS and isinstance(response, dict):
            return response
    raise Torn("the stream does not end with a whole response")
