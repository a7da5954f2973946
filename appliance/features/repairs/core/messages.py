"""Repairs of messages: their roles, their order, and messages that are missing.

Each takes the messages of a chat and returns them as an engine may want them, the same object where nothing is to be
changed. No word is lost, all stay in their order but those of a system, and only `FIRST`, `LAST` and the words about
tools are added. Each does nothing to what it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import msgspec
from msgspec import Raw

from appliance.core.lenient_json import decoded

Message = dict[str, Raw]
Messages = list[Message]
Repair = Callable[[Messages], Messages]

FIRST, LAST = "Hello.", "Continue."
"""The turn of a user that is missing in front, and at the end."""
BREAK = "\n\n"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ABSENT = Raw(b"null")
_PARTS = msgspec.json.Decoder(list[Raw])
_PART = msgspec.json.Decoder(dict[str, Raw])
_TEXT = msgspec.json.Decoder(str)


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def text(value: Raw | None) -> str | None:
    """The text that a member is, or None."""
    return decoded(_TEXT, value) if value is not None else None


def parts(value: Raw | None) -> list[Raw] | None:
    """The elements of a list, or None."""
    return decoded(_PARTS, value) if value is not None else None


def members(value: Raw | None) -> Message | None:
    """The members of an object, or None."""
    return decoded(_PART, value) if value is not None else None


def role(message: Message) -> str:
    return text(message.get("role")) or ""


def words(content: Raw | None) -> str | None:
    """The text of a content; None where a part of it is something else."""
    if content is None or content == ABSENT:
        return ""
    if (whole := text(content)) is not None:
        return whole
    found = [text((members(part) or {}).get("text")) for part in parts(content) or ()]
    said = [one for one in found if one is not None]
    return "\n".join(said) if found and len(said) == len(found) else None


def joined(first: Raw | None, second: Raw | None, between: str = BREAK) -> Raw:
    """Both contents in one: as text, or as parts where one has pictures."""
    one, other = words(first), words(second)
    if one is not None and other is not None:
        return raw(between.join(filter(None, (one, other))))
    return raw([*_as_parts(first), *_as_parts(second)])


def _as_parts(content: Raw | None) -> list[Raw]:
    if (found := parts(content)) is not None:
        return found
    return [raw({"type": "text", "text": said})] if (said := words(content)) else []


def said(role: str, content: Raw) -> Message:
    return {"role": raw(role), "content": content}


# ---- order -----------------------------------------------------------------------------------------------------------


def system_first(messages: Messages) -> Messages:
    """Join all words of the system to one message, which is the first."""
    systems = [one for one in messages if role(one) in ("system", "developer")]
    if not systems or (len(systems) == 1 and systems[0] is messages[0]):
        return messages
    content = systems[0].get("content", ABSENT)
    for one in systems[1:]:
        content = joined(content, one.get("content"))
    first = {**systems[0], "role": raw("system" if any(role(one) == "system" for one in systems) else "developer")}
    return [{**first, "content": content}, *(one for one in messages if role(one) not in ("system", "developer"))]


def system_in_user(messages: Messages) -> Messages:
    """Put the words of the system in front of the first words of the user."""
    found = system_first(messages)
    if not found or role(found[0]) not in ("system", "developer"):
        return messages
    content, rest = found[0].get("content"), found[1:]
    at = next((at for at, one in enumerate(rest) if role(one) == "user"), None)
    if at is None:
        return [said("user", content or raw("")), *rest]
    return [*rest[:at], {**rest[at], "content": joined(content, rest[at].get("content"))}, *rest[at + 1 :]]


def alternate(messages: Messages) -> Messages:
    """Join neighbours that the same side says."""
    return _joined_runs(messages, 0)


def join_last(messages: Messages) -> Messages:
    """Join the assistant's messages at the end."""
    start = len(messages)
    while start and role(messages[start - 1]) == "assistant":
        start -= 1
    return _joined_runs(messages, start)


def _joined_runs(messages: Messages, start: int) -> Messages:
    found = messages[:start]
    for side, run in groupby(messages[start:], role):
        one, *others = run
        if side not in ("user", "assistant"):
            found += [one, *others]
            continue
        for other in others:
            one = _both(one, other)
        found.append(one)
    return found if len(found) < len(messages) else messages


def _both(one: Message, other: Message) -> Message:
    content = joined(one.get("content"), other.get("content"))
    found = {**other, **one, "content": content}
    for name in one.keys() & other.keys() - {"role", "content"}:
        here, there = one[name], other[name]
        if (first := text(here)) is not None and (second := text(there)) is not None and name != "name":
            found[name] = raw(first + BREAK + second)
        elif (listed := parts(here)) is not None:
            found[name] = raw([*listed, *(parts(there) or ())])
        elif here == ABSENT:
            found[name] = there
    return found


def user_first(messages: Messages) -> Messages:
    """Begin with a turn of the user, behind the system's words."""
    at = next((at for at, one in enumerate(messages) if role(one) not in ("system", "developer")), None)
    if at is None or role(messages[at]) == "user":
        return messages
    return [*messages[:at], said("user", raw(FIRST)), *messages[at:]]


def user_last(messages: Messages) -> Messages:
    """End with a turn of the user."""
    if not messages or role(messages[-1]) == "user":
        return messages
    return [*messages, said("user", raw(LAST))]


def user_turn(messages: Messages) -> Messages:
    """Have the user say something: the last words of the system, where nobody else says anything."""
    if not messages or any(role(one) == "user" for one in messages):
        return messages
    if all(role(one) in ("system", "developer") for one in messages):
        return [*messages[:-1], {**messages[-1], "role": raw("user")}]
    return user_first(messages)


# ---- roles -----------------------------------------------------------------------------------------------------------


def developer(messages: Messages) -> Messages:
    """Have the system say what the developer says."""
    if not any(role(one) == "developer" for one in messages):
        return messages
    return [{**one, "role": raw("system")} if role(one) == "developer" else one for one in messages]


def unknown_roles(messages: Messages) -> Messages:
    """Have the user say what nobody knows the role of, with the role's name in front."""
    if all(role(one) in ("", *ROLES) for one in messages):
        return messages
    return [
        one
        if (name := role(one)) in ("", *ROLES)
        else {**one, "role": raw("user"), "content": joined(raw(f"{name}:"), one.get("content"), " ")}
        for one in messages
    ]


def empty(messages: Messages) -> Messages:
    """Leave out messages of system and assistant that say nothing, and call nothing."""
    found = [one for one in messages if role(one) not in ("system", "developer", "assistant") or _says(one)]
    return found if len(found) < len(messages) else messages


def _says(message: Message) -> bool:
    nothing = (ABSENT, Raw(b'""'), Raw(b"[]"))
    return words(message.get("content")) != "" or any(
        value not in nothing for name, value in message.items() if name not in ("role", "content", "name")
    )


# ---- tools in words --------------------------------------------------------------------------------------------------


def stray_results(messages: Messages) -> Messages:
    """Have the user say the results of tools that nobody has called."""
    known: set[str] = set()
    found: Messages = []
    for one in messages:
        known.update(identity for identity, _, _ in calls_of(one))
        stray = role(one) == "tool" and (text(one.get("tool_call_id")) or "") not in known
        found.append(_result(one, {}) if stray else one)
    return found if any(one is not other for one, other in zip(found, messages, strict=True)) else messages


def tools_as_text(messages: Messages) -> Messages:
    """Put what was called, and what came of it, into words of assistant and user."""
    if not any(role(one) in ("tool", "function") or "tool_calls" in one for one in messages):
        return messages
    names: dict[str, str] = {}
    found: Messages = []
    for one in messages:
        if role(one) in ("tool", "function"):
            found.append(_result(one, names))
            continue
        calls = list(calls_of(one))
        names.update({identity: name for identity, name, _ in calls})
        told = BREAK.join(f"[Called {name} with {arguments}]" for _, name, arguments in calls)
        plain = {name: value for name, value in one.items() if name != "tool_calls"}
        found.append({**plain, "content": joined(one.get("content"), raw(told))} if calls else plain)
    return alternate(found)


def calls_of(message: Message) -> Iterable[tuple[str, str, str]]:
    """Id, name and arguments of each call of a tool in a message."""
    for call in parts(message.get("tool_calls")) or ():
        one = members(call) or {}
        function = members(one.get("function")) or {}
        given = function.get("arguments", raw("{}"))
        arguments = text(given)
        yield (
            text(one.get("id")) or "",
            text(function.get("name")) or "",
            arguments if arguments is not None else bytes(given).decode("utf-8", "replace"),
        )


def _result(message: Message, names: dict[str, str]) -> Message:
    name = names.get(text(message.get("tool_call_id")) or "") or text(message.get("name")) or "the tool"
    return said("user", joined(raw(f"[Result of {name}]"), message.get("content"), "\n"))
