"""Arguments against their schema: told clearly, nothing fetched, and never slow, whatever the text or the schema is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.schema_check import MAX_ARGUMENTS, MAX_DEPTH, ArgumentCheck, nests_deeper, schema_problem

ANY = ArgumentCheck(b'{"type": "object"}')
BOUND = 5.0
"""Seconds that every check here stays under by far (the slowest takes a twentieth of one), also on a loaded machine."""


TOO_DEEP = "they are nested deeper than 64 levels"


def problem(schema: object, arguments: str) -> str | None:
    text = json.dumps(schema).encode()
    assert schema_problem(text) is None
    began = time.thread_time()
    found = ArgumentCheck(text).problem(arguments)
    assert time.thread_time() - began < BOUND
    return found


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", None),
        (' {"a": [1, "two", null]} ', None),
        *[(text, "they are not valid JSON") for text in ("", "{", "{} {}", '{"a": "\\ud800"}')],
        *[(text, "they are not a JSON object") for text in ("[]", '"{}"', "null")],
        ('{"a": "\ud800"}', None),
        ('{"a": ' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, None),
        ('{"a": ' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), TOO_DEEP),
        ('{"a": ' + "[" * 1_000_000, TOO_DEEP),
        ('{"a": ' + "[" * 500_000 + "]" * 500_000 + "}", TOO_DEEP),
        ('{"a": "' + "x" * MAX_ARGUMENTS + '"}', f"they are {MAX_ARGUMENTS + 9} bytes long, more than {MAX_ARGUMENTS}"),
        ('{"a": "' + "[" * 1_000_000 + '"}', None),
        ('{"a": [' + "[], " * 250_000 + "[]]}", None),
    ],
)
def test_what_an_object_is(arguments: str, told: str | None):
    began = time.thread_time()
    found = ANY.problem(arguments)
    assert time.thread_time() - began < BOUND
    assert (found or "").startswith(told or "\0") or found is told is None


NESTED = st.recursive(
    st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(NESTED, st.integers(0, 5))
def test_depth_is_that_of_the_value(value: object, levels: int):
    assert nests_deeper(json.dumps(value, ensure_ascii=False).encode(), levels) == (depth_of(value) > levels)


FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"path": "a", "lines": [1]}', None),
        ("{}", "'path' is a required property"),
        ('{"path": 1}', "path: 1 is not of type 'string'"),
        ('{"path": "a", "lines": [1, "2"]}', "lines[1]: '2' is not of type 'integer'"),
        ('{"path": "a", "mode": "w"}', "Additional properties are not allowed ('mode' was unexpected)"),
    ],
)
def test_a_break_of_the_schema_names_the_place(arguments: str, told: str | None):
    assert problem(FILE, arguments) == told


def test_a_long_value_is_not_told_in_full_but_what_is_wrong_is():
    told = problem(FILE, json.dumps({"path": list(range(100_000))}))
    assert len(told) < 400
    assert told.endswith("is not of type 'string'")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (b"{}", None),
        (b'{"type": "object", "properties": {"pattern": {"type": "string", "pattern": "\\\\p{L}"}}}', None),
        (b'{"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}}', None),
        (b'{"$schema": "http://127.0.0.1:9/made-up"}', None),
        (b"[]", "it is not a JSON object"),
        (b"true", "it is not a JSON object"),
        (b"{", "it is not valid JSON: Input data was truncated"),
        (b'{"type": "objekt"}', "type: 'objekt' is not valid under any of the given schemas"),
        (b'{"properties": {"x": {"type": 5}}}', "properties.x.type: 5 is not valid under any of the given schemas"),
        (b'{"required": 5}', "required: 5 is not of type 'array'"),
        (b'{"properties": []}', "properties: [] is not of type 'object'"),
        (b'{"not": ' * 100 + b"{}" + b"}" * 100, "it is nested deeper than 64 levels"),
        (b'{"not": ' * 100_000, "it is nested deeper than 64 levels"),
        (b'{"$schema": 7}', "['$schema']: 7 is not of type 'string'"),
    ],
)
def test_what_a_schema_is_and_that_nothing_else_lets_arguments_pass(schema: bytes, told: str | None):
    assert schema_problem(schema) == told
    found = ArgumentCheck(schema).problem('{"x": 1}')
    assert found is None if told is None else found.startswith("the tool's own schema is invalid: ")


def test_references_within_the_schema_are_followed():
    schema = {
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}},
    }
    assert problem(schema, '{"tree": {"a": {"b": {}}}}') is None
    assert problem(schema, '{"tree": {"a": {"b": 7}}}') == "tree.a.b: 7 is not of type 'object'"


def test_references_out_of_the_schema_are_not_followed():
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    told = "the tool's schema refers to something that is not in it: http://127.0.0.1:9/schema.json"
    assert problem(schema, '{"a": 1}') == told
    assert problem(schema, '{"b": 1}') is None


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": {"$ref": "#/$defs/a"}},
        {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}},
        {f"{'a' if n == 0 else n}": {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} if n < 40 else {} for n in range(41)},
    ],
)
def test_a_schema_that_refers_to_itself_without_end_is_given_up_on(definitions: dict[str, object]):
    told = problem({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": definitions}, '{"x": 1}')
    assert told.startswith("the tool's schema refers to itself ")
    assert problem({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": definitions}, "{}") is None


HOSTILE = "(a+)+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"pattern": HOSTILE}}},
        {"propertyNames": {"pattern": HOSTILE}},
        {"patternProperties": {HOSTILE: {"type": "string"}}, "additionalProperties": False},
        {"patternProperties": {HOSTILE: True}, "unevaluatedProperties": False},
        {"properties": {"x": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": HOSTILE}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"x": {"pattern": HOSTILE}}},
        {"properties": {"x": {"pattern": "\\p{L}"}}},
    ],
)
def test_no_regular_expression_of_a_schema_is_run(schema: object):
    letters = "a" * 60 + "!"
    assert problem(schema, json.dumps({"x": letters, letters: letters})) is None


def test_unique_items_are_found_in_linear_time():
    schema = {"properties": {"x": {"uniqueItems": True}}}
    items = [{"n": n} for n in range(70_000)]
    assert problem(schema, json.dumps({"x": items})) is None
    assert problem(schema, json.dumps({"x": [*items, {"n": 0}]})) == "x: its items are not unique"
    assert problem(schema, '{"x": [1, "1", true, null]}') is None


def test_the_next_check_counts_its_references_anew():
    schema = {"properties": {"x": {"items": {"$ref": "#/$defs/n"}}}, "$defs": {"n": {"type": "integer"}}}
    check = ArgumentCheck(json.dumps(schema).encode())
    for _ in range(3):
        assert check.problem(json.dumps({"x": [1] * 6000})) is None


MIXED = ", ".join(f'{n}, "a{n}"' for n in range(5_000))
WIDE = ", ".join(f'"a{n}": {{}}' for n in range(200_000))
TOO_MUCH = "takes more than 400000 steps to be checked; make it, or the value, smaller"


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (f'{{"properties": {{"x": {{"type": [{MIXED}]}}}}}}', "is not valid under any of the given schemas"),
        (f'{{"$schema": "http://json-schema.org/draft-07/schema#", "type": [{MIXED}]}}', "under any of the given"),
        (f'{{"properties": {{{WIDE}}}}}', f"it {TOO_MUCH}"),
    ],
)
def test_a_schema_made_to_keep_the_check_busy_is_given_up_on(schema: str, told: str):
    """What is not linear here would take minutes, and hold up everybody."""
    found = schema_problem(schema.encode())
    assert found is not None
    assert told in found


@pytest.mark.parametrize(
    ("schema", "value"),
    [  # values are made when they are used: each process that runs tests would make them all
        ({"items": {"type": "integer"}}, lambda: [1] * 500_000),
        ({"items": {"enum": [{"a": n} for n in range(10_000)]}}, lambda: [{"a": 9_999}] * 10_000),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, lambda: {f"a{n}": {} for n in range(100_000)}),
    ],
)
def test_arguments_made_to_keep_the_check_busy_are_given_up_on(schema: object, value: Callable[[], object]):
    assert problem({"properties": {"x": schema}}, json.dumps({"x": value()})) == f"the tool's schema {TOO_MUCH}"


def test_the_dialects_themselves_can_be_referred_to():
    schema = {"properties": {"x": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}}
    assert problem(schema, '{"x": {"type": "object"}}') is None
    told = problem(schema, '{"x": {"properties": {"a": {"type": "objekt"}}}}')
    assert told.endswith("is not valid under any of the given schemas")
