"""Turns a whole answer into the events of a stream with the same content, in each of the dialects."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from appliance.core.answer_whole import ENDS
from appliance.core.json_values import JSON, JsonObject
from appliance.core.slash import Family

Named = tuple[str | None, JsonObject | None]
"""The ``event:`` field and the data; None is OpenAI's ``[DONE]``."""

_AFTER = ("usage", "timings")
"""Members that only the last event has."""
_STATES = {"completed": ENDS[0], "incomplete": ENDS[1], "failed": ENDS[2]}


def events_of(family: Family, whole: JsonObject) -> Iterator[Named]:
    """Return the events in order. They share the objects of ``whole``."""
    match family:
        case Family.MESSAGES:
            return ((str(event["type"]), event) for event in _message(whole))
        case Family.RESPONSES:
            numbered = enumerate(_response(whole))
            return ((str(event["type"]), {**event, "sequence_number": number}) for number, event in numbered)
        case Family.CHAT | Family.COMPLETION:
            if "choices" in whole:
                return _chunks(whole, chat=family is Family.CHAT)
            return iter([(None, whole)])


def _chunks(whole: JsonObject, *, chat: bool) -> Iterator[Named]:
    base = {name: value for name, value in whole.items() if name not in ("choices", *_AFTER)}
    after = {name: whole[name] for name in _AFTER if name in whole}
    choices = _objects(whole.get("choices"))
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
    numbered: list[JSON] = [{"index": at, **call} for at, call in enumerate(_objects(calls))]
    return {**message, "tool_calls": numbered}


def _objects(value: JSON) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# ---- Anthropic -------------------------------------------------------------------------------------------------------


def _message(whole: JsonObject) -> Iterator[JsonObject]:
    end: JsonObject = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
    started: JsonObject = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": started}
    for at, block in enumerate(_objects(whole.get("content"))):
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


def _response(whole: JsonObject) -> Iterator[JsonObject]:
    begun: JsonObject = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for at, item in enumerate(_objects(whole.get("output"))):
        place: JsonObject = {"output_index": at, "item_id": item.get("id", "")}
        yield {"type": "response.output_item.added", "output_index": at, "item": _begun(item)}
        if item.get("type") == "message":
            for number, part in enumerate(_objects(item.get("content"))):
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
