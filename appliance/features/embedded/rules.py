"""JSON schemas of requests to the embedded engine, whose wheel hands them to llguidance.

llama.cpp itself makes a grammar of a schema, ignores the keywords that it cannot express, and refuses what is not a
schema. llguidance gives up at the first such keyword (``oneOf``, ``uniqueItems``, ``format: uri``), and the wheel then
goes on without any constraint, which only its log tells. A chat comes by there with ``--no-jinja`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.bodies.json_text import JSON, OBJECT, JsonEdit, apply_edits, parse_path
from appliance.core.config.scalars import BadRegex, check_pattern
from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest

ROUTES = frozenset(
    {"/completion", "/completions", "/v1/completions", "/infill", "/chat/completions", "/v1/chat/completions"}
)
_PLACES = ("json_schema", "response_format.schema", "response_format.json_schema.schema")
_ARRAYS = re.compile(rb'"items"\s*:\s*\[')
"""The schemas of a tuple's items, by the name that they had until 2019; engines understand both."""
_OPTIONS = b'{"lenient":true,"coerce_one_of":true}'
"""llguidance's own member of a schema: leave out what cannot be expressed."""


class _Named(Struct):
    schema: Raw | UnsetType = UNSET


class _Format(Struct):
    schema: Raw | UnsetType = UNSET
    json_schema: _Named | UnsetType = UNSET


class _Body(Struct):
    json_schema: Raw | UnsetType = UNSET
    response_format: _Format | None = None


_BODY = msgspec.json.Decoder(_Body)


def has_schema(route: str, body: bytes) -> bool:
    """Return whether `kept` may have something to do. It is cheap, because every request asks."""
    return route in ROUTES and b'schema"' in body


def kept(body: bytes) -> bytes:
    """The body with a schema that the embedded engine keeps to. Raises BadRequest for one that it would drop."""
    if (found := decoded(_BODY, body)) is None:
        return body  # the engine says what is wrong with it
    form = found.response_format or _Format()
    schemas = (found.json_schema, form.schema, form.json_schema.schema if form.json_schema is not UNSET else UNSET)
    edits: list[JsonEdit] = []
    for place, schema in zip(_PLACES, schemas, strict=True):
        if schema is not UNSET and bytes(schema) != b"null":
            edits += _lenient(place, schema)
    return apply_edits(body, edits) if edits else body


def _lenient(place: str, schema: Raw) -> list[JsonEdit]:
    if bytes(schema) == b"true":  # anything at all, which an empty schema says as well
        schema = Raw(b"{}")
    if problem := _problem(schema):
        raise BadRequest(f"'{place}' cannot be kept to: {problem}", param=place)
    paths = parse_path(place), parse_path(f"{place}.x-guidance")
    return [
        JsonEdit(path, value) for path, value in zip(paths, (bytes(schema), _OPTIONS), strict=True) if path is not None
    ]


def _problem(schema: Raw) -> str | None:
    from appliance.core.bodies.schema_check import schema_problem  # few requests have a schema

    if problem := schema_problem(_ARRAYS.sub(b'"prefixItems":[', bytes(schema))):
        return problem
    root = OBJECT.decode(schema)
    for name, value in _members(root):
        if name == "$ref" and isinstance(value, str) and not _is_there(root, value):
            return f"'$ref': nothing is at {value[:200]!r}; only places within the schema can be named"
        if name == "pattern" and isinstance(value, str):
            try:
                check_pattern(value)
            except BadRegex as bad:
                return f"the pattern {value[:200]!r} cannot be used: {bad}"
    return None


def _members(value: JSON) -> Iterator[tuple[str, JSON]]:
    """Every member of every object. The depth is bounded: `schema_problem` has looked."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from _members(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _members(inner)


def _is_there(root: JSON, ref: str) -> bool:
    if ref == "#":
        return True
    if not ref.startswith("#/"):
        return False
    place = root
    for part in ref[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return False
    return True
