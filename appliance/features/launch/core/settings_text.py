"""A client's settings file with a section of ours in it. Its new meaning is compared with the one that it should have.

An edit that would change anything else is refused: then its owner edits the file by hand.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Literal, cast

from yaml.events import AliasEvent, CollectionEndEvent, Event, MappingStartEvent, NodeEvent, ScalarEvent

from appliance.core.config.libyaml import NotYaml, events
from appliance.features.launch.core.jsonc import Json, NotJson, merged, patched, read

Form = Literal["json", "toml", "yaml"]
Table = Mapping[str, Json]


class NotEditable(Exception):
    """The file is broken, or written in a way that this program does not edit. The message says what, and where."""


def edited(form: Form, text: str, patch: Table) -> str:
    """Return the text with the patch in it; the same text if it is there already. Raises NotEditable.

    JSON is merged (`jsonc`). TOML: each table of the patch's one table is replaced as a whole. YAML: the patch has
    ``models``, whose items go before the others, and take the place of those that have their names.
    """
    try:
        new = {"json": _json, "toml": _toml, "yaml": _yaml}[form](text, patch)
    except (NotJson, tomllib.TOMLDecodeError) as error:
        raise NotEditable(str(error)) from None
    except NotYaml as error:
        raise NotEditable(f"line {text.count(chr(10), 0, error.offset) + 1}: {error.message}") from None
    if new is None:
        raise NotEditable("it is written in a way that this program does not edit")
    return new


def _json(text: str, patch: Table) -> str | None:
    if not text.strip("\ufeff \t\r\n"):
        return json.dumps(patch, indent=2, ensure_ascii=False) + "\n"
    new = patched(text, patch)
    return new if read(new).value == merged(read(text).value, patch) else None


def _toml(text: str, patch: Table) -> str | None:
    meant = cast("dict[str, Json]", tomllib.loads(text))  # it may have dates, which are compared like all else
    for outer, tables in patch.items():
        there = meant.get(outer, {})
        if not isinstance(tables, Mapping) or not isinstance(there, Mapping):
            return None
        meant[outer] = {**there, **tables}
        for name, table in tables.items():
            body = "".join(
                f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in cast(Table, table).items()
            )
            new = f"[{outer}.{name}]\n{body}"
            own = rf"^\[{re.escape(outer)}\.\"?{re.escape(name)}\"?\][ \t]*\r?\n(?:(?![ \t]*[\[#\r\n])[^\n]+\n?)*"
            text, found = re.subn(own, lambda _, new=new: new, text, flags=re.MULTILINE)
            text = text if found else f"{text.rstrip()}\n\n{new}".lstrip()
    try:
        return text if tomllib.loads(text) == meant else None
    except tomllib.TOMLDecodeError:
        return None


def _yaml(text: str, patch: Table) -> str | None:
    items = cast("list[Table]", patch["models"])
    before = _document(text)
    if before is None:
        text = "name: Local\nversion: 1.0.0\nschema: v1\n"
        before = _document(text)
    there = _models(before)
    if there is None:
        return None
    for item in items:  # what this program wrote: a line with the name, and those that are indented further
        name = re.escape(json.dumps(item["name"]))
        text = re.sub(rf"^( *)- name: {name}\r?\n(?:\1  [^\n]*(?:\n|$))*", "", text, flags=re.MULTILINE)
    key = re.search(r"^models:[ \t]*(?:\[[ \t]*\][ \t]*)?(#[^\n]*)?(?:\n|$)", text, re.MULTILINE)
    if key is None:
        text = f"{text.rstrip()}\nmodels:\n{_block(items, '  ')}"
    else:
        dash = re.match(r"(?:[ \t]*(?:#[^\n]*)?\n)*( *)- ", text[key.end() :])
        head = f"models:{f' {key[1]}' if key[1] else ''}\n"
        text = f"{text[: key.start()]}{head}{_block(items, dash[1] if dash else '  ')}{text[key.end() :]}"
    written, names = cast("list[Json]", _document(_block(items, ""))), [item["name"] for item in items]
    others = [item for item in there if not (isinstance(item, Mapping) and item.get("name") in names)]
    meant = {**cast(Table, before), "models": [*written, *others]}
    return text if _document(text) == meant else None


def _models(document: Json) -> list[Json] | None:
    """The items of ``models``; None if that is something else."""
    there = document.get("models", "") if isinstance(document, Mapping) else None
    return there if isinstance(there, list) else [] if there == "" else None


def _block(items: list[Table], indent: str) -> str:
    lines: list[str] = []
    for item in items:
        shown = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in item.items()]
        lines += [f"{indent}{'  ' if at else '- '}{line}" for at, line in enumerate(shown)]
    return "".join(lines)


def _document(text: str) -> Json:
    """Return the first document with texts in the place of all plain values; None if there is none. Raises NotYaml."""
    stream = (event for event in events(text) if isinstance(event, NodeEvent | CollectionEndEvent))
    first = next(stream, None)
    return None if first is None else _value(first, stream)


def _value(event: Event, stream: Iterator[Event]) -> Json:
    if isinstance(event, ScalarEvent | AliasEvent):
        return str(event.value if isinstance(event, ScalarEvent) else f"*{event.anchor}")
    items: list[Json] = []
    while not isinstance(item := next(stream), CollectionEndEvent):
        items.append(_value(item, stream))
    if not isinstance(event, MappingStartEvent):
        return items
    return {str(key): value for key, value in zip(items[::2], items[1::2], strict=True)}
