"""Finds the schema in a request, and the JSON in an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from appliance.plugins import JSON, JsonObject, Refused
from appliance.plugins.chat import as_object, as_text
from appliance.plugins.schema import mistake_of_schema

ANY_OBJECT: JsonObject = {"type": "object"}
"""The schema for answers if nobody gave one."""
SCHEMA_WORDS = ("$schema", "$ref", "properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([\w+-]*)")


def wanted_schema(body: JsonObject, text: str, settings_schema: JSON) -> JsonObject:
    """Return the schema of the request's own fields, else of a fenced block in its ``text``, else of the settings.

    Raises Refused if the given one cannot be a schema.
    """
    form = as_object(body.get("response_format"))
    own = as_object(form.get("json_schema")).get("schema", form.get("schema", body.get("json_schema")))
    for where, given in (
        ("the request", own),
        ("the fenced block", fenced_schema(text)),
        ("settings", settings_schema),
    ):
        if isinstance(given, dict) and given:
            _check(given, where)
            return given
        if given is not None and not isinstance(given, dict):
            raise Refused(f"the schema of {where} must be a JSON object, and is {type(given).__name__}")
    return ANY_OBJECT


def fenced_schema(text: str) -> JsonObject | None:
    """Return the first fenced block that is a schema: one marked ``schema`` or ``json-schema``, or one that looks like
    one.

    Raises Refused for a marked block that is not JSON.
    """
    for tag, content in _fenced(text):
        marked = tag in ("schema", "json-schema", "jsonschema")
        if not marked and tag not in ("json", ""):
            continue
        try:
            value: JSON = json.loads(content)
        except (ValueError, RecursionError) as error:
            if marked:
                raise Refused(f"the schema in the fenced block is not JSON: {error}") from None
            continue
        if isinstance(value, dict) and (marked or any(word in value for word in SCHEMA_WORDS)):
            return value
    return None


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """Return the mark and the content of every fenced block that is closed."""
    fence, tag, content = "", "", list[str]()
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if not fence and mark:
            fence, tag, content = mark[1], mark[2].lower(), []
        elif fence and mark and mark[1].startswith(fence) and mark[1] == line.strip():
            yield tag, "\n".join(content)
            fence = ""
        else:
            content.append(line)


def _check(schema: JsonObject, where: str) -> None:
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise Refused(f"the schema of {where} refers to '{reference}'; only references within it ('#/...') work")
    if mistake := mistake_of_schema(schema):
        raise Refused(f"the schema of {where} is not a JSON schema: {mistake}")


def _references(value: JSON) -> Iterator[str]:
    """Return every ``$ref`` anywhere in a schema. Raises Refused for one that is nested too deep."""
    waiting: list[tuple[JSON, int]] = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > 100:
            raise Refused("the schema is nested more than 100 levels deep")
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        waiting += [(each, depth + 1) for each in inner]
        if isinstance(value, dict):
            yield from (as_text(value[word]) for word in ("$ref", "$dynamicRef") if isinstance(value.get(word), str))


def read_answer(text: str) -> JSON:
    """Return the JSON of an answer, out of a fenced block if it stands in one. Raises ValueError with the mistake."""
    stripped = text.strip()
    fenced = None if stripped.startswith(("{", "[")) else next(_fenced(stripped), None)
    try:
        return json.loads(fenced[1] if fenced is not None else stripped)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        if not stripped:
            raise ValueError("it is empty") from None
        raise ValueError(f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
