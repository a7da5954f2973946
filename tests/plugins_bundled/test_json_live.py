"""Answers that fit a schema, through the program."""

from __future__ import annotations

import json

import pytest
from plugged import OpenPlugged, script

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
FENCED = f"/json How old?\n```json\n{json.dumps(AGE)}\n```"
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
        {"alpha": script('{"age": "old"}')}, settings={"json": {"schema": AGE, "attempts": 1}}
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
