"""Answers that fit a schema: where it comes from, what an answer lacks, and the same through the program."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from bundled import module
from hypothesis import given
from hypothesis import strategies as st
from plugged import OpenPlugged, script

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


AGE_ALONE = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
FENCED = f"/json How old?\n```json\n{json.dumps(AGE_ALONE)}\n```"
CALL = {"calls": [{"name": "f", "arguments": "{}", "id": "c1"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("turns", "said", "corrections"),
    [
        (['```json\n{"age": 3}\n```'], '{"age": 3}', 0),
        (['{"age": "3"}', "", '{"age": 4}'], '{"age": 4}', 2),
    ],
)
async def test_an_answer_fits_in_the_end(
    plugged: OpenPlugged, turns: list[str], said: str, corrections: int, stream: bool
) -> None:
    async with plugged({"alpha": script(*turns)}) as program:
        found = await program.told("json", "alpha", FENCED, stream=stream)
    assert found == (said, {"fits": True, "corrections": corrections})


async def test_an_answer_that_never_fits_is_an_error_that_says_why(plugged: OpenPlugged) -> None:
    async with plugged(
        {"alpha": script('{"age": "old"}')}, settings={"json": {"schema": AGE_ALONE, "attempts": 1}}
    ) as program:
        for stream in (False, True):
            message = await program.refused("alpha", "/json How old?", 502, stream=stream)
            assert "json" in message
            assert "does not fit the schema after 1 correction: $.age: 'old' is not of type 'integer'" in message


async def test_a_cut_answer_says_what_to_raise(plugged: OpenPlugged) -> None:
    turns = script({"text": '{"age"', "finish": "length"})
    async with plugged({"alpha": turns}, settings={"json": {"attempts": 0}}) as program:
        assert "raise 'max_tokens'" in await program.refused("alpha", FENCED, 502)


async def test_a_call_of_tools_is_no_answer_yet(plugged: OpenPlugged) -> None:
    async with plugged({"alpha": script(CALL)}) as program:
        whole = await program.ask("alpha", FENCED, tools=[TOOL])
        assert whole["choices"][0]["message"]["tool_calls"]
        answer = await program.stream("alpha", FENCED, tools=[TOOL])
        assert not any("json" in record for record in answer.records)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_engine_is_held_to_the_schema(plugged: OpenPlugged, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "level": {"enum": ["low", "high"]}},
        "required": ["ok", "level"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "state", "schema": schema}}
    async with plugged({}, real={"starter": []}, settings={"json": {"attempts": 0}}) as program:
        said, _ = await program.told("json", "starter", "/json How are you?", stream=stream, response_format=form)
    value = json.loads(said)
    assert isinstance(value["ok"], bool)
    assert value["level"] in ("low", "high")
