"""The places of values in a configuration's text, and edits there: every other byte stays.

A form's edit is a splice: it replaces, puts in or takes out one key, and the comments and the order of all others stay.
An edit whose result does not mean exactly what was asked is refused, so that an unusual way to write is never damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any, Literal

import yaml
from msgspec import Struct

from appliance.core.config.decode import plain
from appliance.core.config.libyaml import events
from appliance.core.config.nodes import MappingNode
from appliance.core.config.yaml import AS_WRITTEN, parse
from appliance.errors import UsageError
from appliance.features.config_editing.core.asked import Setting

_MACRO = re.compile(r"\$\{env\.\w+\}|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w", re.ASCII)
"""Texts that YAML does not take before `core.config.yaml` has changed them."""


class TextSpan(Struct, frozen=True):
    """One value of the text, from ``start`` to ``end``; a mapping has its keys."""

    start: int
    end: int
    kind: Literal["scalar", "mapping", "list", "alias"]
    flow: bool = True  # in brackets, or a single value
    entries: tuple[SpanEntry, ...] = ()

    def entry(self, key: str) -> SpanEntry | None:
        return next((entry for entry in self.entries if entry.name == key), None)


class SpanEntry(Struct, frozen=True):
    """One key of a mapping, with its value."""

    name: str
    key: TextSpan
    value: TextSpan


def spans(text: str) -> tuple[TextSpan | None, dict[int, TextSpan]]:
    """The root of a text that `parse` takes, and all single values by where they begin."""
    stream = events(_MACRO.sub(lambda odd: "x" * len(odd[0]), text))
    scalars: dict[int, TextSpan] = {}
    root = next((_span(event, stream, text, scalars)[1] for event in stream if isinstance(event, yaml.NodeEvent)), None)
    return root, scalars


def with_value(text: str, path: Sequence[str], value: Setting) -> str:
    """The text with another value at ``path``; None takes the key out. Raises UsageError where that is not possible."""
    asked = _meaning(text)
    edited = _edited(text, path, value) if asked is not None and _put(asked, path, value) else None
    if edited is not None and _meaning(edited) == asked:
        return edited
    raise UsageError(f"{'.'.join(path)} is written in a way that the form cannot edit; change it in the text")


def difference(old: str, new: str) -> str:
    """The lines that differ, as ``diff -u`` writes them; empty if there are none."""
    return "\n".join(unified_diff(old.splitlines(), new.splitlines(), "before", "after", n=2, lineterm=""))


def _span(
    event: yaml.Event, stream: Iterator[yaml.Event], text: str, scalars: dict[int, TextSpan]
) -> tuple[str, TextSpan]:
    """The text of a single value, and the value's place."""
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, yaml.AliasEvent):
        return "", TextSpan(start, end, "alias")
    if isinstance(event, yaml.ScalarEvent):
        end = start + len(text[start:end].rstrip())  # a block ends behind its last line
        scalars[start] = TextSpan(start, end, "scalar")
        return event.value, scalars[start]
    assert isinstance(event, yaml.CollectionStartEvent)
    entries: list[SpanEntry] = []
    inner = next(stream)
    while not isinstance(inner, yaml.CollectionEndEvent):
        name, found = _span(inner, stream, text, scalars)
        end = found.end
        if isinstance(event, yaml.MappingStartEvent):
            value = _span(next(stream), stream, text, scalars)[1]
            entries.append(SpanEntry(name, found, value))
            end = max(end, value.end)
        inner = next(stream)
    kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "list"
    return "", TextSpan(
        start, inner.end_mark.index if event.flow_style else end, kind, event.flow_style, tuple(entries)
    )


def _meaning(text: str) -> dict[str, Any] | None:
    root, problems = parse(text, "", AS_WRITTEN)
    if not isinstance(root, MappingNode) or any(problem.level == "error" for problem in problems):
        return None
    return {entry.key.text: plain(entry.value) for entry in root.entries}


def _put(tree: dict[str, Any], path: Sequence[str], value: Setting) -> bool:
    """Set ``path`` in the tree; False if there is no mapping around it."""
    for name in path[:-1]:
        if not isinstance(tree := tree.get(name, ()), dict):
            return False
    if value is None:
        tree.pop(path[-1], None)
    else:
        tree[path[-1]] = value
    return True


def _edited(text: str, path: Sequence[str], value: Setting) -> str | None:
    """The text after the splice; None where there is no place for it."""
    span = spans(text)[0]
    for name in path[:-1]:
        found = span.entry(name) if span is not None else None
        span = found.value if found is not None else None
    if span is None or span.kind != "mapping" or not span.entries:
        return None
    found = span.entry(path[-1])
    if value is None:
        return text if found is None else _without(text, span, found)
    if found is None:  # the key stands before all others, which have their lines and comments
        at = span.entries[0].key.start
        if span.flow:
            return f"{text[:at]}{json.dumps(path[-1])}: {_written(value)}, {text[at:]}"
        indent = " " * (at - _line_start(text, at))
        return f"{text[:at]}{path[-1]}: {_written(value)}{_line_end(text)}{indent}{text[at:]}"
    start, end = found.value.start, found.value.end
    space = " " if text[start - 1 : start] == ":" else ""
    return f"{text[:start]}{space}{_written(value, found.value, text)}{text[end:]}"


def _without(text: str, mapping: TextSpan, gone: SpanEntry) -> str:
    start, end = gone.key.start, gone.value.end
    if not mapping.flow:
        start = _line_start(text, start)
        end = (text.find("\n", end) + 1) or len(text)
    elif behind := [one.key.start for one in mapping.entries if one.key.start > start]:
        end = behind[0]
    else:
        start = max([one.value.end for one in mapping.entries if one.value.end <= start], default=start)
    return text[:start] + text[end:]


def _written(value: Setting, old: TextSpan | None = None, text: str = "") -> str:
    """The value as JSON, which is YAML; a list stays a list of lines if it was one."""
    if isinstance(value, list) and old is not None and old.kind == "list" and not old.flow:
        column = old.start - _line_start(text, old.start)
        return f"{_line_end(text)}{' ' * column}".join(f"- {_written(one)}" for one in value)
    return json.dumps(value, ensure_ascii=False)


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
