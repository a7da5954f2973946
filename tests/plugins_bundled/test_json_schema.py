"""Where the schema of an answer comes from, and what an answer lacks."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from bundled import module
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugins import Refused
from appliance.plugins.schema import mistakes

schema, fitting = module("json", "schema"), module("json", "fitting")
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
OTHER = {"type": "array", "items": {"type": "string"}}


def fence(value: object, tag: str = "json") -> str:
    return f"Who?\n```{tag}\n{value if isinstance(value, str) else json.dumps(value, indent=2)}\n```\nSay."


@pytest.mark.parametrize(
    ("body", "text", "settings", "expected"),
    [
        ({}, "hi", None, schema.ANY_OBJECT),
        ({}, "hi", AGE, AGE),
        ({}, fence(OTHER), AGE, OTHER),
        ({}, fence({"x": 1}, "schema"), None, {"x": 1}),
        ({}, fence(AGE, "json-schema"), None, AGE),
        ({}, fence({"data": 1}), AGE, AGE),
        ({}, fence(AGE, "python"), None, schema.ANY_OBJECT),
        ({}, fence("{broken"), None, schema.ANY_OBJECT),
        ({"json_schema": OTHER}, fence(AGE), None, OTHER),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": OTHER}}}, fence(AGE), AGE, OTHER),
        ({"response_format": {"type": "json_object", "schema": OTHER}}, "", AGE, OTHER),
        ({"response_format": {"type": "json_object"}}, "", AGE, AGE),
    ],
)
def test_wanted_schema(body: dict, text: str, settings: object, expected: dict) -> None:
    assert schema.wanted_schema(body, text, settings) == expected


@pytest.mark.parametrize(
    ("body", "text", "settings", "message"),
    [
        ({}, fence("{broken", "schema"), None, "fenced block is not JSON"),
        ({}, fence({"type": "objekt"}, "schema"), None, r"fenced block is not a JSON schema: \$.type"),
        ({}, "", {"properties": []}, "settings is not a JSON schema"),
        ({}, "", "object", "must be a JSON object, and is str"),
        ({"json_schema": {"$ref": "https://example.com/s.json"}}, "", None, "only references within it"),
        ({"json_schema": {"items": [{"$ref": "file:///etc/passwd"}]}}, "", None, "only references within it"),
    ],
)
def test_schemas_that_cannot_be_used(body: dict, text: str, settings: object, message: str) -> None:
    with pytest.raises(Refused, match=message):
        schema.wanted_schema(body, text, settings)


def test_a_bottomless_schema_is_refused() -> None:
    deep: dict = {}
    for _ in range(200):
        deep = {"items": deep}
    with pytest.raises(Refused, match="more than 100 levels"):
        schema.wanted_schema({"json_schema": deep}, "", None)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), (" [1] \n", [1]), ('```json\n{"a": 1}\n```', {"a": 1}), ('Here:\n```\n"x"\n```\nok', "x")],
)
def test_read_answer(text: str, value: object) -> None:
    assert schema.read_answer(text) == value
    assert json.loads(fitting._bare(text)) == value


def test_fences_of_a_hostile_text_are_found_in_one_pass() -> None:
    from time import perf_counter

    def took(lines: int) -> float:
        began = perf_counter()
        assert schema.fenced_schema("\n".join("`" * (3 + n) for n in range(lines))) is None
        return perf_counter() - began

    took(100)
    assert min(took(1200) for _ in range(5)) < 60 * min(took(300) for _ in range(5))


@pytest.mark.parametrize(
    ("text", "message"), [("", "it is empty"), ("{", "not JSON: .* line 1, column 2"), ("[" * 100_000, "too deep")]
)
def test_an_answer_that_is_no_json(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema.read_answer(text)


@given(st.text())
def test_reading_an_answer_raises_nothing_else(text: str) -> None:
    with suppress(ValueError):
        schema.read_answer(text)


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        ({"age": 3}, AGE, []),
        ({"age": "3"}, AGE, ["$.age: '3' is not of type 'integer'"]),
        ({}, AGE, ["$: 'age' is a required property"]),
        (["a", 1], OTHER, ["$[1]: 1 is not of type 'string'"]),
        ([0] * 20, OTHER, [f"$[{n}]: 0 is not of type 'string'" for n in range(10)]),
        ("a" * 40 + "!", {"pattern": "^(a+)+$"}, []),
        ({"b": {"age": 1}}, {"properties": {"b": {"$ref": "#/$defs/age"}}, "$defs": {"age": AGE}}, []),
    ],
)
def test_mistakes(value: object, wanted: dict, expected: list[str]) -> None:
    assert mistakes(value, wanted) == expected


@pytest.mark.parametrize(
    ("wanted", "message"), [({"$ref": "#/$defs/none"}, "is not in it"), ({"$ref": "#"}, "refers to itself")]
)
def test_references_to_nothing(wanted: dict, message: str) -> None:
    with pytest.raises(Refused, match=message):
        mistakes({}, wanted)
