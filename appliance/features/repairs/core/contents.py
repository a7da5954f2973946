"""Repairs of what stands in messages: contents and their parts, calls of tools with their ids and arguments.

As in `messages`: no word is lost, and what needs no repair is returned as the same object.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw

from appliance.core.bodies.json_text import OBJECT
from appliance.core.lenient_json import decoded
from appliance.features.repairs.core.messages import (
    ABSENT,
    Message,
    Messages,
    members,
    parts,
    raw,
    role,
    text,
    words,
)

_MEDIA = ("image_url", "input_audio", "input_video")
_KNOWN = ("text", *_MEDIA)
_TEXTS = ("text", "refusal", "thinking", "reasoning")
"""The members in which parts of other dialects have their text."""
_TEXT_FILE = re.compile(r"data:(?:text/[\w.+-]+|application/json)(?:;charset=[\w-]+)?;base64,([A-Za-z0-9+/=]*)")
_NINE = re.compile("[A-Za-z0-9]{9}")
_ANY = msgspec.json.Decoder(object)


def _changed(messages: Messages, change: Callable[[Message], Message]) -> Messages:
    found = [change(one) for one in messages]
    return found if any(one is not other for one, other in zip(found, messages, strict=True)) else messages


def contents(messages: Messages) -> Messages:
    """Make a text of a content that is a number or an object, and an empty one where there is none at all."""

    def change(message: Message) -> Message:
        content = message.get("content")
        if content is None:
            return message if "tool_calls" in message else {**message, "content": raw("")}
        first = bytes(content)[:1]
        if first in (b'"', b"[") or content == ABSENT:
            return message
        if first == b"{" and "type" in (members(content) or {}):
            return {**message, "content": raw([content])}
        return {**message, "content": raw(bytes(content).decode("utf-8", "replace"))}

    return _changed(messages, change)


def neighbouring_parts(messages: Messages) -> Messages:
    """Make text of the parts that other APIs have for it."""

    def change(message: Message) -> Message:
        given = parts(message.get("content"))
        found = [_part(one) for one in given or ()]
        return {**message, "content": raw(found)} if given is not None and found != given else message

    return _changed(messages, change)


def _part(given: Raw) -> Raw:
    part = members(given)
    kind = text(part.get("type")) if part is not None else None
    if part is None:
        plain = text(given)
        return given if plain is None else raw({"type": "text", "text": plain})
    if kind in _KNOWN:
        return given
    if kind == "input_image" and (url := text(part.get("image_url"))) is not None:
        return raw({"type": "image_url", "image_url": {"url": url}})
    said = _text_in(part)
    return given if said is None else raw({"type": "text", "text": said})


def _text_in(part: Message) -> str | None:
    for name in _TEXTS:
        if (said := words(part.get(name))) is not None and name in part:
            return said
    data = text((members(part.get("file")) or part).get("file_data"))
    found = _TEXT_FILE.fullmatch(data) if data is not None else None
    try:
        return base64.b64decode(found[1], validate=True).decode() if found is not None else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def plain_text(messages: Messages) -> Messages:
    """Make one text of a content that is a list of texts, and an empty one of none."""

    def change(message: Message) -> Message:
        content = message.get("content", ABSENT)
        said = words(content)
        return message if said is None or text(content) is not None else {**message, "content": raw(said)}

    return _changed(messages, change)


def unseen(messages: Messages) -> Messages:
    """Put a note in the place of pictures and sounds in results of tools, as the conversation has to go on."""

    def change(message: Message) -> Message:
        given = parts(message.get("content")) if role(message) == "tool" else None
        found = [_noted(one) for one in given or ()]
        return {**message, "content": raw(found)} if given is not None and found != given else message

    return _changed(messages, change)


def _noted(given: Raw) -> Raw:
    kind = text((members(given) or {}).get("type"))
    what = (
        "an image, which this model cannot see" if kind == "image_url" else "a recording, which this model cannot use"
    )
    return given if kind not in _MEDIA else raw({"type": "text", "text": f"[{what}]"})


# ---- calls of tools --------------------------------------------------------------------------------------------------


def function_role(messages: Messages) -> Messages:
    """Make calls of tools, and their results, of what they were called before 2024."""
    if not any(role(one) == "function" or members(one.get("function_call")) is not None for one in messages):
        return messages
    found: Messages = []
    for at, one in enumerate(messages):
        called = members(one.get("function_call"))
        if called is not None:
            plain = {name: value for name, value in one.items() if name != "function_call"}
            found.append({**plain, "tool_calls": raw([{"id": _new_id(at), "type": "function", "function": called}])})
        elif role(one) == "function":
            before = next((_new_id(way) for way in range(at - 1, -1, -1) if "function_call" in messages[way]), "")
            found.append({**one, "role": raw("tool"), "tool_call_id": raw(before or _new_id(at))})
        else:
            found.append(one)
    return found


def readable_calls(messages: Messages) -> Messages:
    """Give calls ids that are text, results the ids of their calls, and arguments that are an object in text."""
    numbers, waiting = iter(range(len(messages) << 8)), list[str]()

    def change(message: Message) -> Message:
        if role(message) == "tool":
            return _answered(message, waiting)
        calls = parts(message.get("tool_calls"))
        if not calls:
            return message
        found = [_readable(call, numbers) for call in calls]
        waiting[:] = [text((members(call) or {}).get("id")) or "" for call in found]
        return message if found == calls else {**message, "tool_calls": raw(found)}

    return _changed(messages, change)


def _answered(message: Message, waiting: list[str]) -> Message:
    given = message.get("tool_call_id", ABSENT)
    identity = text(given)
    if identity is None:
        number = "" if given == ABSENT else bytes(given).decode("utf-8", "replace")
        identity = number or (waiting[0] if waiting else _new_id(0))
    if identity in waiting:
        waiting.remove(identity)
    return message if text(given) is not None else {**message, "tool_call_id": raw(identity)}


def _readable(given: Raw, numbers: Iterator[int]) -> Raw:
    call = members(given)
    function = members(call.get("function")) if call is not None else None
    number, identity = next(numbers), call.get("id", ABSENT) if call is not None else ABSENT
    if call is None or function is None:
        return given
    found, arguments = dict(call), _object_in(function.get("arguments", ABSENT))
    if "id" in found and text(identity) is None:
        told = "" if identity == ABSENT else bytes(identity).decode("utf-8", "replace")
        found["id"] = raw(told or _new_id(number))
    if arguments is not None:
        found["function"] = raw({**function, "arguments": raw(arguments)})
    return given if found == call else raw(found)


def _object_in(arguments: Raw) -> str | None:
    """The object that arguments are to be, as text; None if they are one."""
    said = text(arguments)
    if said is None:
        if arguments == ABSENT:
            return "{}"
        whole = bytes(arguments).decode("utf-8", "replace")
        return whole if whole.startswith("{") else f'{{"arguments": {whole}}}'
    if not said.strip():
        return "{}"
    if decoded(OBJECT, said) is not None:
        return None
    return msgspec.json.encode({"arguments": said if decoded(_ANY, said) is None else Raw(said.encode())}).decode()


def short_ids(messages: Messages) -> Messages:
    """Give all calls ids of nine letters and digits."""
    new: dict[str, str] = {}

    def renamed(old: str) -> str:
        return old if _NINE.fullmatch(old) else new.setdefault(old, _new_id(len(new)))

    def change(message: Message) -> Message:
        found = dict(message)
        if (identity := text(message.get("tool_call_id"))) is not None:
            found["tool_call_id"] = raw(renamed(identity))
        if calls := [members(call) for call in parts(message.get("tool_calls")) or ()]:
            found["tool_calls"] = raw(
                [None if call is None else {**call, "id": renamed(text(call.get("id")) or "")} for call in calls]
            )
        same = all(_ANY.decode(found[name]) == _ANY.decode(message[name]) for name in message)
        return message if same else found

    return _changed(messages, change)


def _new_id(number: int) -> str:
    return f"call{number:05d}"
