"""The meaning of an engine's refusal, the repairs to try next, and the blame in the end.

The repairs of a reason are in the order of how much they change. The first that changes something is tried, then the
next one with it, and at last each alone, on top of those that have removed another reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.answers.faults import FAULTS, fault_in
from appliance.core.bodies.json_text import JsonEdit, apply_edits, parse_path
from appliance.core.exchange import Refused
from appliance.core.lenient_json import decoded
from appliance.features.repairs.core import contents, messages, tools
from appliance.features.repairs.core.abilities import EMBEDDINGS, RANKS, TOKENS
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
    """A kind of refusal, of the client's making. ``words`` tell it what that means, and make it a 400."""

    words: str
    repairs: tuple[str, ...] = ()
    kept: bool = True
    """A repair that helps is kept for the next request. Not where it depends on this one alone."""


OF_FAULTS: dict[str, tuple[str, ...]] = {
    "pictures": ("unseen",),
    "sound": ("unseen",),
    "arguments": ("calls",),
    "call ids": ("call-ids",),
    "messages": ("calls", "content", "parts"),
    "tools": ("tools",),
    "tool_choice": ("tool-choice",),
    "schema": ("tool-schemas",),
    "grammar": ("tool-schemas", "grammar"),
    "part": ("parts",),
    "content": ("content", "parts"),
    "assistants": ("join-last",),
}
"""The repairs of the faults of `appliance.core.answers.faults`; no repair helps against the others."""
_OF_ONE = ("schema",)  # a schema is one request's


def _reason(pattern: str, *repairs: str, kept: bool = True) -> tuple[re.Pattern[str], Reason]:
    words = "the model's chat template refuses these messages"
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), Reason(words, repairs, kept)


OF_TEMPLATES = (
    _reason(
        "system (message|role|prompt).*(must be|not supported|beginning|first)|only .* system",
        "developer",
        "system-first",
        "system-in-user",
    ),
    _reason(
        "alternat",
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
        "function-role",
        "system-first",
        "tools-as-text",
        "user-turn",
        "user-last",
    ),
    _reason("no user (query|message)|at least one user", "user-turn", "user-last"),
    _reason(
        "no previous assistant message with a tool call",
        "function-role",
        "stray-results",
        "tools-as-text",
        kept=False,
    ),
    _reason(
        "role",
        "function-role",
        "developer",
        "system-first",
        "unknown-role",
        "stray-results",
        "tools-as-text",
        "system-in-user",
    ),
    _reason("content", "function-role", "plain-text", "empty", "tools-as-text", kept=False),
    _reason("", *OF_MESSAGES, kept=False),
)
"""The reasons of templates, by patterns for their own words: the first that is found counts."""
OF_QUESTIONS = (
    (
        TOKENS,
        re.compile(r"\Avector::_M_range_check|\Ainvalid vector subscript|\Avector\Z"),
        "the model has no token with this number",
    ),
    (
        (*EMBEDDINGS, *RANKS),
        re.compile("too large to process"),
        "a text has more tokens than the engine reads at once; send it in parts, or give the model a larger "
        "--ubatch-size and --batch-size",
    ),
    (RANKS, re.compile(r"\Avector::_M_default_append|\Avector too long|\Avector\Z"), "top_n may not be below 0"),
)
"""The mistakes that llama-server answers with a 500 on routes without a chat: also in the words of three C++ libraries
for a number that is out of range.
"""
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
    if (fault := fault_in(said)) is not None:
        return Reason(FAULTS[fault].words, OF_FAULTS.get(fault, ()), fault not in _OF_ONE)
    raised = _RAISED.search(said)
    if raised is None:
        return None
    told = raised[1] or raised[2] or ""
    return next(reason for pattern, reason in OF_TEMPLATES if pattern.search(told))


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
    return _as_mistake(first, why)


def blamed(route: str, refused: Refused) -> Refused:
    """Return the client's answer for a refused question about texts; the same object where the engine itself failed."""
    said = message_of(refused) if refused.status >= 500 else ""
    why = next((words for routes, pattern, words in OF_QUESTIONS if route in routes and pattern.search(said)), None)
    return refused if why is None else _as_mistake(refused, why)


def _as_mistake(refused: Refused, why: str) -> Refused:
    """Return the refusal as one of a mistake of the client: with a status below 500, and ``why`` in its message."""
    edits = [_edit("error.message", messages.raw(f"{message_of(refused)} ({why})"))]
    if refused.status >= 500:
        edits += [_edit("error.code", b"400"), _edit("error.type", INVALID)]
    status = 400 if refused.status >= 500 else refused.status
    return Refused(status, refused.headers, apply_edits(refused.content, edits))
