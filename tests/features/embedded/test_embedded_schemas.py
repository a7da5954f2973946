"""Schemas that the embedded engine is given: told to be lenient, and refused where they are none."""

from __future__ import annotations

import json

import pytest

from appliance.errors import BadRequest
from appliance.features.embedded.rules import has_schema, kept

LENIENT = {"lenient": True, "coerce_one_of": True}


def sent(schema: object) -> object:
    return json.loads(kept(json.dumps({"prompt": "x", "json_schema": schema}).encode()))["json_schema"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"$defs": {"a/b": {"type": "integer"}}, "$ref": "#/$defs/a~1b"},
        {"$ref": "#"},
        {"anyOf": [{"type": "integer"}, {"$ref": "#/anyOf/0"}]},
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
        {"type": "string", "pattern": "^[a-z]+$"},
        {},
    ],
)
def test_it_is_told_to_leave_out_what_it_does_not_know(schema: dict[str, object]) -> None:
    assert sent(schema) == {**schema, "x-guidance": LENIENT}


def test_anything_at_all_is_an_empty_schema_and_none_is_none() -> None:
    assert sent(True) == {"x-guidance": LENIENT}
    for body in (b'{"json_schema": null}', b'{"prompt": "\\"json_schema\\""}', b'{"json_schema": '):
        assert kept(body) is body


def test_a_chat_has_its_schema_in_two_other_places() -> None:
    told = {"x-guidance": LENIENT}
    for form, lenient in (
        ({"type": "json_object", "schema": {}}, {"type": "json_object", "schema": told}),
        ({"json_schema": {"name": "x", "schema": {}}}, {"json_schema": {"name": "x", "schema": told}}),
    ):
        body = json.dumps({"messages": [], "response_format": form}).encode()
        assert json.loads(kept(body)) == {"messages": [], "response_format": lenient}
    plain = b'{"messages": [], "response_format": {"type": "json_object"}}'
    assert kept(plain) is plain
    with pytest.raises(BadRequest, match=r"'response_format\.schema' cannot be kept to"):
        kept(b'{"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}')


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "wrong"}, "wrong"),
        ({"type": "object", "properties": {"a": {"type": "wrong"}}}, "wrong"),
        ({"type": "string", "minLength": "x"}, "minLength"),
        ({"$ref": "#/definitions/none"}, "nothing is at '#/definitions/none'"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/anyOf/2"}]}, "nothing is at '#/anyOf/2'"),
        ({"$ref": "http://127.0.0.1:9/x"}, "only places within the schema"),
        ({"type": "string", "pattern": "(?=a)b"}, r"the pattern '\(\?=a\)b' cannot be used"),
        (5, "not a JSON object"),
        ("x", "not a JSON object"),
        ([], "not a JSON object"),
        (False, "not a JSON object"),
    ],
)
def test_what_would_be_dropped_without_a_word_is_refused(schema: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        sent(schema)


def test_only_routes_that_have_schemas_are_looked_at() -> None:
    assert has_schema("/completion", b'{"json_schema": {}}')
    assert has_schema("/v1/chat/completions", b'{"response_format": {"schema": {}}}')
    assert not has_schema("/v1/messages", b'{"json_schema": {}}')
    assert not has_schema("/completion", b'{"prompt": "x"}')
