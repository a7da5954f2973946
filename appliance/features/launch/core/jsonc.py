"""JSON with comments and trailing commas, as editors and clients let their users write it: read, and edited in place.

An edit is a *patch*: objects are merged key by key, and an item of a list is merged with the one that has the same
``id`` or ``name``, or added. All other values are replaced, and all other bytes stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn, TypeAlias

from msgspec import Struct

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"
Pair: TypeAlias = "tuple[str | int | None, str, Json]"
"""The key or place of a value that there is, None for a new one; the text before it; the patch."""

DEEPEST = 100
_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')


class NotJson(ValueError):
    """The text is not JSON, even with comments. The message says where."""


class Node(Struct, frozen=True):
    """A value, its start and end in the text, and the nodes in it by key or place."""

    value: Json
    start: int
    end: int
    inside: Mapping[str | int, Node]


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Node:
        node = self._value(0)
        if self._skip():
            self._fail("the end is expected")
        return node

    def _fail(self, why: str) -> NoReturn:
        before = self._text[: self._at]
        raise NotJson(f"line {before.count(chr(10)) + 1}, column {self._at - before.rfind(chr(10))}: {why}")

    def _skip(self) -> str:
        """Pass over spaces and comments. Return the character that follows, empty at the end."""
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        found = self._skip() == sign
        self._at += found
        return found

    def _scalar(self, what: str) -> str | float | bool | None:
        found = _SCALAR.match(self._text, self._at)
        if found is None:
            self._fail(f"{what} is expected")
        try:
            value: str | float | bool | None = json.loads(found[0])
        except ValueError:
            self._fail(f"{found[0]} is not {what}")
        self._at = found.end()
        return value

    def _value(self, depth: int) -> Node:
        sign, start = self._skip(), self._at
        if sign not in ("{", "["):
            return Node(self._scalar("a value"), start, self._at, {})
        if depth > DEEPEST:
            self._fail("too deep")
        self._at += 1
        close, inside = "}" if sign == "{" else "]", dict[str | int, Node]()
        while not self._take(close):
            key: object = len(inside)
            if sign == "{":
                key = self._scalar("a key")
                if not isinstance(key, str) or key in inside or not self._take(":"):
                    self._fail(f"after {key!r}: a text that is here once, and then a ':', are expected")
            assert isinstance(key, str | int)
            inside[key] = self._value(depth + 1)
            if not self._take(",") and self._skip() != close:
                self._fail(f"a ',' or '{close}' is expected")
        values = {str(key): node.value for key, node in inside.items()}
        return Node(values if sign == "{" else list(values.values()), start, self._at, inside)


def read(text: str) -> Node:
    """Return the one value of a text. Raises NotJson."""
    return _Reader(text).whole()


def patched(text: str, patch: Mapping[str, Json]) -> str:
    """Return the text with the patch in it. Raises NotJson, also for a text that is not an object."""
    root = read(text)
    if not isinstance(root.value, Mapping):
        raise NotJson("line 1, column 1: an object is expected")
    first = next(iter(root.inside.values()), None)
    unit = _indent(text, first.start) if first is not None and "\n" in text[root.start : first.start] else ""
    for start, end, new in sorted(_edits(text, root, patch, unit or "  "), reverse=True):
        text = text[:start] + (new.replace("\n", "\r\n") if "\r\n" in text else new) + text[end:]
    return text


def merged(value: Json, patch: Json) -> Json:
    """Return the value that `patched` makes of a value."""
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        return {**value, **{key: merged(value[key], new) if key in value else new for key, new in patch.items()}}
    if isinstance(value, list) and isinstance(patch, list):
        pairs = list(_pairs(value, patch))
        kept = {key: new for key, _, new in pairs if key is not None}
        items = [merged(item, kept[at]) if at in kept else item for at, item in enumerate(value)]
        return [*items, *(new for key, _, new in pairs if key is None)]
    return patch


def _pairs(value: Json, patch: Json) -> Iterator[Pair]:
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        for key, new in patch.items():
            yield key if key in value else None, f"{json.dumps(key, ensure_ascii=False)}: ", new
    elif isinstance(value, list) and isinstance(patch, list):
        names = [_name(item) for item in value]
        for new in patch:
            yield names.index(_name(new)) if _name(new) in names else None, "", new


def _name(item: Json) -> Json:
    return [True, item.get("id", item.get("name", item))] if isinstance(item, Mapping) else [False, item]


def _edits(text: str, node: Node, patch: Json, unit: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start and end of each part that changes, and its new text."""
    pairs = list(_pairs(node.value, patch))
    if not pairs:
        if merged(node.value, patch) != node.value:
            yield node.start, node.end, _written(patch, unit, _indent(text, node.start))
        return
    for key, _, new in pairs:
        if key is not None:
            yield from _edits(text, node.inside[key], new, unit)
    more = [(before, new) for key, before, new in pairs if key is None]
    there = list(node.inside.values())
    if there and "\n" not in text[node.start : there[0].start]:
        parts = [f", {before}{json.dumps(new, ensure_ascii=False)}" for before, new in more]
        yield there[-1].end, there[-1].end, "".join(parts)
        return
    outer = _indent(text, node.start)
    inner = _indent(text, there[0].start) if there else outer + unit
    lines = [f"\n{inner}{before}{_written(new, unit, inner)}" for before, new in more]
    if there:
        yield there[-1].end, there[-1].end, "".join(f",{line}" for line in lines)
    elif lines:
        start = node.start + len(text[node.start : node.end - 1].rstrip())
        yield start, node.end - 1, ",".join(lines) + f"\n{outer}"


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _written(value: Json, unit: str, indent: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{indent}")
