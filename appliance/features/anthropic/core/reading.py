"""Reading a request member by member: the types, and `members` for those that change nothing or cannot be had."""

from __future__ import annotations

import re

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.bodies.keep_alive import kind_of
from appliance.errors import BadRequest, shortened
from appliance.features.anthropic.core.members import MEMBERS, Fate, Treated

MOST_NOTES = 32
_UNTELLABLE = re.compile(r"[^ -~]|,")


class Notes:
    """The members of one request that are ignored, and told."""

    def __init__(self) -> None:
        self._noted: dict[str, None] = {}

    @property
    def told(self) -> tuple[str, ...]:
        """At most MOST_NOTES of them, each fit for a header."""
        return tuple(self._noted)

    def add(self, kind: str, name: str) -> None:
        """Note a member, or a block or tool of some type. The client may have written ``name``."""
        if len(self._noted) < MOST_NOTES:
            self._noted[_UNTELLABLE.sub("?", shortened(name if kind == "request" else f"{kind}: {name}"))] = None

    def rest(self, kind: str, given: JsonObject, where: str = "") -> JsonObject:
        """Note and refuse the members of an object as `members` says, and return those that it does not know."""
        known, rest = MEMBERS[kind], JsonObject()
        for name, value in given.items():
            member = known.get(name)
            if member is None:
                rest[name] = value
            elif member.fate is Fate.NOTED and value not in (None, [], {}, False):
                self.add(kind, name)
            elif member.fate is Fate.REFUSED and value not in (None, [], {}, 1):
                refuse(f"{where}{name}", member)
        return rest

    def take(self, kind: str, given: JsonObject, where: str) -> None:
        """The same for an object below the request, where nothing is passed on unknown."""
        for name in self.rest(kind, given, f"{where}."):
            self.add(kind, name)


class ThreadsUnsupported(BadRequest):
    """Anthropic's own clients know this word, and go on without a thread."""

    reason = "thread_unsupported_request"


def refuse(where: str, member: Treated) -> None:
    error = ThreadsUnsupported if where == "thread" else BadRequest
    raise error(f"'{where}' is not supported: {member.why}", param=where)


def unknown(where: str, known: str, given: str) -> BadRequest:
    """Return the error for a word that is none of the ``known`` ones."""
    return BadRequest(f"'{where}' may be {known}, not '{shortened(given)}'", param=where)


def text_of(value: JSON, where: str, *, empty: bool = True) -> str:
    """Return a text; null counts as "" unless it may not be ``empty``. Raises BadRequest."""
    if value is None and empty:
        return ""
    if not isinstance(value, str):
        raise BadRequest(f"'{where}' must be a string, not {kind_of(value)}", param=where)
    if not value and not empty:
        raise BadRequest(f"'{where}' is empty", param=where)
    return value


def number_of(value: JSON, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"'{where}' must be a number, not {kind_of(value)}", param=where)
    return value


def object_in(value: JSON, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise BadRequest(f"'{where}' must be an object, not {kind_of(value)}", param=where)
    return value


def list_in(value: JSON, where: str) -> list[JSON]:
    if not isinstance(value, list):
        raise BadRequest(f"'{where}' must be an array, not {kind_of(value)}", param=where)
    return value
