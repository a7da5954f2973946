"""An answer in its other form: a stream joined to the whole answer of the same route, or a whole answer told as a
stream.

Both know each of the dialects. Deltas of OpenAI's routes and llama.cpp's own are joined member by member: texts and
lists grow, single facts are replaced. An engine's additions to them are therefore joined like the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from appliance.core.answers.families import Family
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject, objects_of
from appliance.core.bodies.sse import Decoder, ErrorInfo, RecordTooLong, SseEvent, encode
from appliance.core.lenient_json import decoded

_FACTS = frozenset(
    ("id", "object", "model", "role", "type", "name", "finish_reason", "system_fingerprint", "stop_type")
)
"""Texts that are replaced, not continued: the last one counts."""
_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
ENDS = ("response.completed", "response.incomplete", "response.failed")
_NUMBER = "sequence_number"
_AFTER = ("usage", "timings")
"""Members that only the last event has."""
_STATES = {"completed": ENDS[0], "incomplete": ENDS[1], "failed": ENDS[2]}


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


def _response(parts: list[JsonObject]) -> JsonObject:
    """The last event has the whole answer."""
    for part in reversed(parts):
        response = part.get("response")
        if part.get("type") in ENDS and isinstance(response, dict):
            return response
    raise Torn("the stream does not end with a whole response")


class Begun:
    """The beginning of a streamed response, for an end that has to be made up. No input makes it raise.

    A chunk costs a search and a reference: only its first and its last records are decoded, and only once.
    """

    def __init__(self) -> None:
        self._response: JsonObject = {}
        self._last = b""
        self._records = 0

    def feed(self, records: bytes) -> None:
        """Note whole records that the client gets."""
        count = records.count(b"\ndata:") + records.startswith(b"data:")
        if count and not self._records:
            told = (each.get("response") for each in _read(records))
            self._response = next((each for each in told if isinstance(each, dict)), self._response)
        if count:
            self._records += count
            self._last = records

    def failed(self, error: ErrorInfo) -> bytes:
        """Return the record that tells the failure; b"" where no response has begun, which could have failed."""
        if "id" not in self._response:
            return b""
        numbers = [each.get(_NUMBER) for each in _read(self._last)]
        number = next((each for each in reversed(numbers) if isinstance(each, int)), None)
        told: JsonObject = {"code": error.reason, "message": error.message, "type": error.type, "param": error.param}
        event: JsonObject = {
            "type": "response.failed",
            _NUMBER: self._records if number is None else number + 1,
            "response": {"output": [], **self._response, "status": "failed", "error": told},
        }
        return encode(SseEvent(msgspec.json.encode(event).decode(), "response.failed"))


def _read(records: bytes) -> list[JsonObject]:
    """The records that are JSON objects."""
    try:
        found = [decoded(OBJECT, event.data) for event in Decoder().feed(records)]
    except RecordTooLong:
        return []
    return [each for each in found if each is not None]


Named = tuple[str | None, JsonObject | None]
"""The ``event:`` field and the data; None is OpenAI's ``[DONE]``."""


def events_of(family: Family, whole: JsonObject) -> Iterator[Named]:
    """Return the events in order. They share the objects of ``whole``."""
    match family:
        case Family.MESSAGES:
            return ((str(event["type"]), event) for event in _message_events(whole))
        case Family.RESPONSES:
            numbered = enumerate(_response_events(whole))
            return ((str(event["type"]), {**event, _NUMBER: number}) for number, event in numbered)
        case Family.CHAT | Family.COMPLETION:
            if "choices" in whole:
                return _chunks(whole, chat=family is Family.CHAT)
            return iter([(None, whole)])


def _chunks(whole: JsonObject, *, chat: bool) -> Iterator[Named]:
    base = {name: value for name, value in whole.items() if name not in ("choices", *_AFTER)}
    after = {name: whole[name] for name in _AFTER if name in whole}
    choices = objects_of(whole.get("choices"))
    if not chat:
        yield None, {"choices": list[JSON](choices), **base, **after}
    else:
        base["object"] = "chat.completion.chunk"
        for choice in choices:
            said = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
            message = choice.get("message")
            said |= {"delta": _delta(message if isinstance(message, dict) else {}), "finish_reason": None}
            yield None, {"choices": [said], **base}
        ends: list[JSON] = [
            {"index": c.get("index", 0), "delta": {}, "finish_reason": c.get("finish_reason")} for c in choices
        ]
        yield None, {"choices": ends, **base, **after}
    yield None, None


def _delta(message: JsonObject) -> JsonObject:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    numbered: list[JSON] = [{"index": at, **call} for at, call in enumerate(objects_of(calls))]
    return {**message, "tool_calls": numbered}


# ---- Anthropic -------------------------------------------------------------------------------------------------------


def _message_events(whole: JsonObject) -> Iterator[JsonObject]:
    end: JsonObject = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
    started: JsonObject = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": started}
    for at, block in enumerate(objects_of(whole.get("content"))):
        empty, deltas = _block(block)
        yield {"type": "content_block_start", "index": at, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {"type": "message_delta", "delta": end, "usage": whole.get("usage", {})}
    yield {"type": "message_stop"}


def _block(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return the beginning of a block, and the parts that are then added to it."""
    match block:
        case {"type": "text", "text": text}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": text}]
        case {"type": "thinking", "thinking": text}:
            deltas: list[JsonObject] = [{"type": "thinking_delta", "thinking": text}]
            if "signature" in block:
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
                return {**block, "thinking": "", "signature": ""}, deltas
            return {**block, "thinking": ""}, deltas
        case {"type": "tool_use", "input": given}:
            text = msgspec.json.encode(given).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case _:
            return block, []


# ---- OpenAI Responses ------------------------------------------------------------------------------------------------


def _response_events(whole: JsonObject) -> Iterator[JsonObject]:
    begun: JsonObject = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for at, item in enumerate(objects_of(whole.get("output"))):
        place: JsonObject = {"output_index": at, "item_id": item.get("id", "")}
        yield {"type": "response.output_item.added", "output_index": at, "item": _begun(item)}
        if item.get("type") == "message":
            for number, part in enumerate(objects_of(item.get("content"))):
                yield from _content(part, {**place, "content_index": number})
        elif item.get("type") == "function_call":
            arguments = item.get("arguments", "")
            yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
            yield {"type": "response.function_call_arguments.done", **place, "arguments": arguments}
        yield {"type": "response.output_item.done", "output_index": at, "item": item}
    status = whole.get("status")
    yield {"type": _STATES.get(status, ENDS[0]) if isinstance(status, str) else ENDS[0], "response": whole}


def _begun(item: JsonObject) -> JsonObject:
    match item.get("type"):
        case "message":
            return {**item, "content": [], "status": "in_progress"}
        case "function_call":
            return {**item, "arguments": "", "status": "in_progress"}
        case _:
            return item


def _content(part: JsonObject, place: JsonObject) -> Iterator[JsonObject]:
    if part.get("type") != "output_text":
        yield {"type": "response.content_part.added", **place, "part": part}
    else:
        text = part.get("text", "")
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}
