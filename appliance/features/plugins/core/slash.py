r"""Slash commands: the plugins that a request names at the head of its newest text.

``/rag /parallel Hello`` names two plugins, to be run in this order; the model gets ``Hello``. A word is a command only
while every word before it was one: ``/unknown /rag hi`` contains none, and the text stays as it is. ``\/rag`` is not a
command either, and loses its backslash. The text is that of the last message of the user, or the prompt; earlier
messages and results of tools are not examined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import msgspec
from msgspec import Raw, Struct

from appliance.core.answers.families import Family
from appliance.core.bodies.json_text import JsonEdit, Path, PathStep, apply_edits
from appliance.core.lenient_json import UNREADABLE
from appliance.errors import BadRequest

MAX_COMMANDS = 16  # in one request; each may ask models of its own
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # the form of a command's name

_WORD = re.compile(rf"\s*+(\\?)/({NAME.pattern})(?!\S)")
_GAP = re.compile(r"[^\S\r\n]*+(?:\r?\n(?:[^\S\r\n]*+\r?\n)*+)?")
"""The text that belongs to a command: blanks behind it and empty lines, but not the indentation of the text's first
line.
"""
_ESCAPED_SLASH = b"\\u002"  # JSON may also write a slash by its number, 002f or 002F
_ABSENT = Raw()
_TEXT_PARTS = ("text", "input_text")


class SlashWords(Struct, frozen=True):
    """``commands`` in order, and the rest of the text."""

    commands: tuple[str, ...]
    text: str


class SlashPlan(Struct, frozen=True):
    """The work for a request: ``body`` is the same bytes without the commands."""

    commands: tuple[str, ...]
    body: bytes


class Commands:
    """The commands that exist for one kind of request."""

    def __init__(self, family: Family, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._family = family
        self._needles = tuple(f"/{name}".encode() for name in sorted(self.names))
        if self._needles:
            self._needles += (_ESCAPED_SLASH,)

    def plan(self, body: bytes) -> SlashPlan | None:
        """Return None when there is nothing to do, mostly after one search per name. Raises BadRequest for too many."""
        if not any(needle in body for needle in self._needles):
            return None
        found = _newest_text(self._family, body)
        if found is None or (words := split(found[1], self.names)) is None:
            return None
        return SlashPlan(words.commands, apply_edits(body, (JsonEdit(found[0], msgspec.json.encode(words.text)),)))


def split(text: str, known: Collection[str]) -> SlashWords | None:
    """Return the commands at the head of a text; None if it has none, and no escaped one. Raises BadRequest."""
    found: list[str] = []
    rest = 0
    while word := _WORD.match(text, rest):
        if word[2] not in known:
            break
        if word[1]:
            return SlashWords(tuple(found), text[rest : word.start(1)] + text[word.end(1) :])
        found.append(word[2])
        gap = _GAP.match(text, word.end())
        rest = gap.end() if gap else word.end()
    if len(found) > MAX_COMMANDS:
        raise BadRequest(f"the text begins with {len(found)} slash commands; at most {MAX_COMMANDS} are carried out")
    return SlashWords(tuple(found), text[rest:]) if found else None


class _PromptBody(Struct):
    prompt: str


class _ChatBody(Struct):
    messages: list[Raw]


class _Responses(Struct):
    input: str | list[Raw]


class _InputMessage(Struct):
    role: str = ""
    content: Raw = _ABSENT
    type: str = "message"


class _InputPart(Struct):
    type: str = ""
    text: str | None = None


def _newest_text(family: Family, body: bytes) -> tuple[Path, str] | None:
    """Return the place and the text.

    None if the user says nothing in words, or if the body is not as the route expects: its server says so.
    """
    try:
        match family:
            case Family.COMPLETION:
                return _path("prompt"), msgspec.json.decode(body, type=_PromptBody).prompt
            case Family.CHAT | Family.MESSAGES:
                return _of_messages("messages", msgspec.json.decode(body, type=_ChatBody).messages)
            case Family.RESPONSES:
                given = msgspec.json.decode(body, type=_Responses).input
                return (_path("input"), given) if isinstance(given, str) else _of_messages("input", given)
    except UNREADABLE:
        return None


def _of_messages(member: str, messages: list[Raw]) -> tuple[Path, str] | None:
    for at in range(len(messages) - 1, -1, -1):
        message = msgspec.json.decode(messages[at], type=_InputMessage)
        if message.role == "user" and message.type == "message":
            return _of_content((member, at, "content"), message.content)
    return None


def _of_content(place: tuple[str | int, ...], content: Raw) -> tuple[Path, str] | None:
    """Return a string, or the first text part of a list. Results of tools do not count."""
    given = msgspec.json.decode(content, type=str | list[Raw])
    if isinstance(given, str):
        return _path(*place), given
    for at, raw in enumerate(given):
        part = msgspec.json.decode(raw, type=_InputPart)
        if part.type in _TEXT_PARTS and part.text is not None:
            return _path(*place, at, "text"), part.text
    return None


def _path(*steps: str | int) -> Path:
    return Path(tuple(PathStep(str(s).encode(), s if isinstance(s, int) else None) for s in steps))
