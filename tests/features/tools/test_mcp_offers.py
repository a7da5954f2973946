"""Prompts and resources of MCP servers: what is understood of them, and the text that they hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from appliance.features.tools.core.mcp_messages import (
    MAX_OFFERS,
    MAX_TEXT,
    McpError,
    McpPrompt,
    Resource,
    RpcAnswer,
    prompt_text,
    read_offers,
    resource_text,
)


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def test_what_can_be_understood_is_offered_and_the_rest_left_out() -> None:
    answer = RpcAnswer(id=1, result=raw({"prompts": [{"name": "a"}, {"title": "no name"}, 5, {"name": "b"}]}))
    assert read_offers(answer, "prompts", McpPrompt) == (McpPrompt("a"), McpPrompt("b"))
    assert read_offers(answer, "resources", Resource) == ()
    many = RpcAnswer(id=1, result=raw({"resources": [{"uri": "x:y"}] * (MAX_OFFERS + 1)}))
    assert read_offers(many, "resources", Resource) == (Resource("x:y"),) * MAX_OFFERS


@pytest.mark.parametrize(
    "answer",
    [
        None,
        RpcAnswer(id=1),
        RpcAnswer(id=1, error=McpError(code=1, message="no")),
        *(RpcAnswer(id=1, result=raw(wrong)) for wrong in ([], {"prompts": 5}, {"prompts": {}})),
    ],
)
def test_a_server_that_knows_none_has_none(answer: RpcAnswer | None) -> None:
    assert read_offers(answer, "prompts", McpPrompt) == ()


def test_the_text_of_a_prompt_is_that_of_its_messages() -> None:
    contents = [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA"},
        {"type": "resource", "text": "not this", "resource": {"uri": "x:y", "text": "two"}},
        {"type": "resource", "resource": {"uri": "x:y", "blob": "AAAA"}},
        {"type": "resource", "resource": 5},
    ]
    messages = [{"role": "user", "content": each} for each in contents]
    assert prompt_text(raw({"messages": messages})) == "one\n\ntwo"
    for wrong, told in (({"messages": messages[1:2]}, "no text"), ({}, "no text"), ({"messages": 5}, "not a prompt")):
        with pytest.raises(ValueError, match=told):
            prompt_text(raw(wrong))


def test_the_text_of_a_resource_is_that_of_its_parts() -> None:
    texts = [{"uri": "x:1", "text": "one"}, {"uri": "x:2", "blob": "AAAA"}, {"uri": "x:3", "text": ""}]
    assert resource_text(raw({"contents": texts})) == "one\n"
    files = [{"uri": "x:1", "blob": "AAAA", "mimeType": "image/png"}, {"uri": "x:2", "blob": "AAAA"}]
    for wrong, told in (
        ({"contents": files}, r"not text \(image/png, unknown\)"),
        ({"contents": []}, "not a resource"),
        ({"contents": 5}, "not a resource"),
    ):
        with pytest.raises(ValueError, match=told):
            resource_text(raw(wrong))


def test_a_text_has_an_end() -> None:
    long = "x" * (MAX_TEXT + 1)
    assert len(resource_text(raw({"contents": [{"text": long}]}))) == MAX_TEXT
    assert len(prompt_text(raw({"messages": [{"role": "user", "content": {"text": long}}]}))) == MAX_TEXT


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_result_is_text_or_refused(value: object) -> None:
    for read in (prompt_text, resource_text):
        for told in (value, {"messages": value, "contents": value}):
            try:
                assert isinstance(read(raw(told)), str)
            except ValueError:
                pass
