"""The meaning of an engine's refusal, the repairs to try next, and the blame in the end.

`REASONS` has llama-server's own words, up to b11549, as patterns. The repairs of a reason are in the order of how much
they change. The first that changes
something is tried, then the next one with it, and at last each alone, on top of those that have removed another reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.bodies.json_text import JsonEdit, apply_edits, parse_path
from appliance.core.exchange import Refused
from appliance.core.lenient_json import decoded
from appliance.features.repairs.core import contents, messages, tools
from appliance.features.repairs.core.messages import Messages

OF_MESSAGES: dict[str, Callable[[Messages], Messages]] = {
    "calls": contents.readable_calls,
    "call-ids": contents.short_ids,
    "content": contents.contents,
    "parts": contents.neighbouring_parts,
    "unseen": contents.unseen,
    "plain-text": contents.plain_text,
    "function-role": contents.function_role,
    "developer": messages.developer,
    "unknown-role": messages.unknown_roles,
    "empty": messages.empty,
    "system-first": messages.system_first,
    "join-last": messages.join_last,
    "alternate": messages.alternate,
    "stray-results": messages.stray_results,
    "tools-as-text": messages.tools_as_text,
    "system-in-user": messages.system_in_user,
    "user-turn": messages.user_turn,
    "user-first": messages.user_first,
    "user-last": messages.user_last,
}
"""The repairs of messages, by name, in the order in which they are done."""
OF_TOOLS: dict[str, tools.Repair] = {
    "tools": tools.wrapped,
    "tool-choice": tools.choice,
    "tool-schemas": tools.weaker,
    "grammar": tools.grammar,
}
MAX_ATTEMPTS = 12
INVALID = b'"invalid_request_error"'


class Attempt(Struct, frozen=True):
    """One body that the engine has refused. ``names`` are the repairs in it."""

    names: tuple[str, ...]
    refused: Refused


class Reason(Struct, frozen=True):
    """A kind of refusal. ``words`` tell the client what it means, and its fault makes it a 400."""

    pattern: re.Pattern[str]
    words: str
    repairs: tuple[str, ...] = ()
    kept: bool = True
    """A repair that helps is kept for the next request. Not where it depends on this one alone."""


def _reason(pattern: str, words: str, *repairs: str, kept: bool = True) -> Reason:
    return Reason(re.compile(pattern, re.IGNORECASE | re.DOTALL), words, repairs, kept)


_TEMPLATE = "the model's chat template refuses these messages"
REASONS = (
    _reason(
        "image input is not supported",
        "this model reads no pictures: leave them out, or ask one with a projector",
        "unseen",
    ),
    _reason(
        "(audio|video) input is not supported",
        "this model reads no sound or film: leave it out, or ask one that does",
        "unseen",
    ),
    _reason(
        "tool call arguments|filter 'items'|item pairs",
        "the arguments of a tool call are not a JSON object in text",
        "calls",
    ),
    _reason("tool call ids? should", "the template wants ids of nine letters and digits", "call-ids"),
    _reason("missing 'role'", "each message needs a role"),
    _reason("failed to parse messages", "a message has a member of the wrong type", "calls", "content", "parts"),
    _reason(
        "failed to parse tools|missing tool|unsupported tool type",
        'a tool looks like {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        "tools",
    ),
    _reason("tool_choice", "tool_choice is auto, none, required or the name of a function", "tool-choice"),
    _reason("json schema error", "a schema asks for what no grammar can hold", "tool-schemas", kept=False),
    _reason(
        "failed to initialize samplers|failed to parse grammar",
        "the engine can make no grammar of what the answer is to look like",
        "tool-schemas",
        "grammar",
    ),
    _reason(r"content\[\]\.type", "a part of a content is of a kind that chats do not have", "parts"),
    _reason(
        "'content' to be a string|'content' or 'tool_calls'|missing 'content'",
        "a content is a text or a list of parts",
        "content",
        "parts",
    ),
    _reason("2 or more assistant messages", "the answer can go on with one message of the assistant only", "join-last"),
    _reason(
        "system (message|role|prompt).*(must be|not supported|beginning|first)|only .* system",
        _TEMPLATE,
        "developer",
        "system-first",
        "system-in-user",
    ),
    _reason(
        "alternat",
        _TEMPLATE,
        "function-role",
        "unknown-role",
        "system-first",
        "alternate",
        "user-first",
        "tools-as-text",
        "system-in-user",
    ),
    _reason(
        "(last|final) message must|must end with|end with a user",
        _TEMPLATE,
        "function-role",
        "system-first",
        "tools-as-text",
        "user-turn",
        "user-last",
    ),
    _reason("no user (query|message)|at least one user", _TEMPLATE, "user-turn", "user-last"),
    _reason(
        "no previous assistant message with a tool call",
        _TEMPLATE,
        "function-role",
        "stray-results",
        "tools-as-text",
        kept=False,
    ),
    _reason(
        "role",
        _TEMPLATE,
        "function-role",
        "developer",
        "system-first",
        "unknown-role",
        "stray-results",
        "tools-as-text",
        "system-in-user",
    ),
    _reason("content", _TEMPLATE, "function-role", "plain-text", "empty", "tools-as-text", kept=False),
    _reason("", _TEMPLATE, *OF_MESSAGES, kept=False),
)
"""The first whose pattern is found counts. Those of templates are looked for in the template's own words alone."""
_OF_TEMPLATES = next(at for at, one in enumerate(REASONS) if one.words == _TEMPLATE)
_RAISED = re.compile(r"jinja exception: (.*)|while executing .*error: (.*)", re.IGNORECASE | re.DOTALL)


class _Chat(Struct):
    messages: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    response_format: Raw | UnsetType = UNSET
    json_schema: Raw | UnsetType = UNSET
    grammar: Raw | UnsetType = UNSET


class _Error(Struct):
    message: str = ""


class _Answer(Struct):
    error: _Error


_MESSAGES = msgspec.json.Decoder(Messages)


def message_of(refused: Refused) -> str:
    """The engine's words, "" where they cannot be found."""
    found = decoded(_Answer, refused.content)
    return found.error.message if found is not None else ""


def reason_of(refused: Refused) -> Reason | None:
    """Return what a refusal means; None: nothing that is known, as when the engine itself has failed."""
    said = message_of(refused)
    if (found := next((one for one in REASONS[:_OF_TEMPLATES] if one.pattern.search(said)), None)) is not None:
        return found
    raised = _RAISED.search(said)
    if raised is None:
        return None
    told = raised[1] or raised[2] or ""
    return next(one for one in REASONS[_OF_TEMPLATES:] if one.pattern.search(told))


class Repaired(Struct, frozen=True):
    """A body with repairs. ``names`` are those that change something."""

    body: bytes
    names: tuple[str, ...] = ()


def repaired(body: bytes, names: Sequence[str]) -> Repaired:
    """The body with these repairs; the same object where they change nothing. Other members keep their bytes."""
    chat = decoded(_Chat, body)
    if chat is None or not names:
        return Repaired(body)
    done: list[str] = []
    given = {name: value for name in tools.MEMBERS if isinstance(value := getattr(chat, name), Raw)}
    changes: tools.Changes = {}
    found = decoded(_MESSAGES, chat.messages) if chat.messages is not UNSET else None
    if found is not None:
        for name, repair in OF_MESSAGES.items():
            before, found = found, repair(found) if name in names else found
            if found is not before:
                done.append(name)
        if done:
            changes["messages"] = messages.raw(found)
    for name, repair in OF_TOOLS.items():
        changed = repair(given) if name in names else {}
        changes |= changed
        done += [name] if changed else []
        given = {key: value for key, value in {**given, **changed}.items() if value is not None}
    if not changes:
        return Repaired(body)
    return Repaired(apply_edits(body, [_edit(name, value) for name, value in changes.items()]), tuple(done))


def _edit(name: str, value: Raw | bytes | None) -> JsonEdit:
    path = parse_path(name)
    assert path is not None
    return JsonEdit(path, None if value is None else bytes(value))


def next_try(body: bytes, tried: Sequence[Attempt]) -> Repaired | None:
    """Return the body to try next; None: nothing is left. ``tried`` has the latest attempt last."""
    last = tried[-1]
    reason = reason_of(last.refused)
    if reason is None or len(tried) > MAX_ATTEMPTS:
        return None
    said = message_of(last.refused)
    # A repair that has not removed this reason is given up. Those before it have removed others.
    base = next(each.names for each in tried if message_of(each.refused) == said)
    known = {each.names for each in tried}
    several = [reason.repairs[: number + 1] for number in range(len(reason.repairs))]
    for more in (*several, *((one,) for one in reason.repairs)):
        found = repaired(body, (*base, *more))
        if found.names not in known:
            return found
    return None


def kept_names(tried: Sequence[Attempt], names: Sequence[str]) -> tuple[str, ...]:
    """The repairs that are worth to be kept for the next request, after they have helped."""
    asked = {name for each in tried if (one := reason_of(each.refused)) and one.kept for name in one.repairs}
    return tuple(name for name in names if name in asked and name != "tool-schemas")


def final(body: bytes, first: Refused) -> Refused:
    """Return the client's answer for a request that stays refused: the engine's first, with what that means.

    A failure of the engine itself is left as it is.
    """
    reason = reason_of(first)
    if reason is None:
        return first
    chat = decoded(_Chat, body)
    given = {"tools": chat.tools} if chat is not None and chat.tools is not UNSET else {}
    why = (tools.strict_problem(given) if "tool-schemas" in reason.repairs else None) or reason.words
    said = messages.raw(f"{message_of(first)} ({why})")
    edits = [_edit("error.message", said)]
    if first.status >= 500:
        edits += [_edit("error.code", b"400"), _edit("error.type", INVALID)]
    return Refused(
        400 if first.status >= 500 else first.status,
        first.headers,
        apply_edits(first.content, edits),
    )
