"""Slash commands: what is one, where it may stand, and that nothing else of a body changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.answers.families import Family, family_of
from appliance.errors import BadRequest
from appliance.features.plugins.core.slash import MAX_COMMANDS, Commands, split

KNOWN = frozenset(("rag", "parallel", "a-b.c_9"))
CHAT = Commands(Family.CHAT, KNOWN)
names = st.sampled_from(sorted(KNOWN))
blanks = st.text(" \t\n", min_size=1, max_size=3)


def chat(text: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@pytest.mark.parametrize(
    ("text", "commands", "rest"),
    [
        ("/rag hi", ("rag",), "hi"),
        ("  /rag hi", ("rag",), "hi"),
        ("/rag", ("rag",), ""),
        ("/a-b.c_9 x", ("a-b.c_9",), "x"),
        ("/rag\n   /parallel  x\n y", ("rag", "parallel"), "x\n y"),
        ("/rag\n\n    indented", ("rag",), "    indented"),
        ("/rag /unknown hi", ("rag",), "/unknown hi"),
        ("/rag /unknown /parallel hi", ("rag",), "/unknown /parallel hi"),
        ("\\/rag hi", (), "/rag hi"),
        (" \\/rag hi", (), " /rag hi"),
        ("/rag \\/parallel hi", ("rag",), "/parallel hi"),
        ("/rag \\/unknown hi", ("rag",), "\\/unknown hi"),
    ],
)
def test_the_head_of_a_text(text: str, commands: tuple[str, ...], rest: str):
    found = split(text, KNOWN)
    assert (found.commands, found.text) == (commands, rest)


@pytest.mark.parametrize(
    "text",
    ["", "hi", "hi /rag", "/unknown /rag hi", "/rag, hi", "/rag/x", "/RAG hi", "//rag", "\\/unknown", "\\\\/rag"],
)
def test_a_text_without_commands_stays_as_it_is(text: str):
    assert split(text, KNOWN) is None
    assert CHAT.plan(chat(text)) is None


@given(st.lists(names, min_size=1, max_size=6), st.lists(blanks, min_size=7, max_size=7), st.text())
def test_what_was_written_in_front_is_found_in_its_order(commands: list[str], between: list[str], text: str):
    written = "".join(f"/{name}{blank}" for name, blank in zip(commands, between, strict=False))
    found = split(written + "." + text, KNOWN)
    assert found.commands == tuple(commands)
    assert found.text.lstrip(" \t\n") == "." + text


@given(st.text())
def test_a_text_is_a_fixed_point_once_its_commands_are_gone_or_it_is_escaped(text: str):
    found = split(text, KNOWN)
    if found is None:
        assert split(f"/rag .{text}", KNOWN) is not None
    escaped = split(f"\\/rag {text}", KNOWN)
    assert escaped.commands == ()
    assert escaped.text == f"/rag {text}"


def test_more_commands_than_anybody_needs_are_refused():
    assert split("/rag " * MAX_COMMANDS, KNOWN) is not None
    with pytest.raises(BadRequest, match="at most 16"):
        split("/rag " * (MAX_COMMANDS + 1), KNOWN)


TEXT_PARTS = [{"type": "image_url", "image_url": {"url": "/rag"}}, {"type": "text", "text": "/rag hi"}]
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "/rag hi"}]}


@pytest.mark.parametrize(
    ("family", "body", "changed"),
    [
        (Family.COMPLETION, {"prompt": "/rag hi", "x": 1}, {"prompt": "hi", "x": 1}),
        (Family.CHAT, {"messages": [{"role": "user", "content": TEXT_PARTS}]}, None),
        (Family.MESSAGES, {"messages": [{"role": "user", "content": [TOOL_RESULT, TEXT_PARTS[1]]}]}, None),
        (Family.RESPONSES, {"input": "/rag hi"}, {"input": "hi"}),
        (Family.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "/rag hi"}]}]}, None),
        (
            Family.CHAT,
            {"messages": [{"role": "user", "content": "/rag hi"}, {"role": "tool", "content": "/rag no"}]},
            {"messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": "/rag no"}]},
        ),
    ],
)
def test_the_newest_text_of_the_user(family: Family, body: object, changed: object):
    sent = json.dumps(body)
    plan = Commands(family, KNOWN).plan(sent.encode())
    assert plan.commands == ("rag",)
    expected = json.dumps(changed) if changed is not None else sent[::-1].replace("ih gar/", "ih", 1)[::-1]
    assert plan.body.decode() == expected


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (Family.COMPLETION, {"prompt": ["/rag hi"]}),
        (Family.COMPLETION, {"messages": [{"role": "user", "content": "/rag hi"}]}),
        (Family.CHAT, {"messages": [{"role": "system", "content": "/rag hi"}]}),
        (Family.CHAT, {"messages": [{"role": "user", "content": "/rag hi"}, {"role": "user", "content": "so?"}]}),
        (Family.CHAT, {"messages": [{"role": "user", "content": {"text": "/rag hi"}}]}),
        (Family.MESSAGES, {"messages": [{"role": "user", "content": [TOOL_RESULT]}]}),
        (Family.RESPONSES, {"input": [{"type": "function_call_output", "role": "user", "content": "/rag hi"}]}),
        (Family.CHAT, ["/rag hi"]),
    ],
)
def test_nothing_else_is_looked_at(family: Family, body: object):
    assert Commands(family, KNOWN).plan(json.dumps(body).encode()) is None


def test_a_body_that_is_no_json_is_left_to_its_server():
    assert CHAT.plan(b'{"messages": [{"role": "user", "content": "/rag') is None
    assert CHAT.plan(b'{"messages": [{"role": "user", "content": "/rag \xff"}]}') is None


def test_a_slash_may_be_written_by_its_number():
    plan = CHAT.plan(chat("/rag hi").replace(b"/rag", b"\\u002Frag"))
    assert plan.body == chat("hi")


@given(st.lists(names, min_size=1, max_size=3), st.text('/\\ragx é\n"😀', max_size=20), st.integers(1, 1500))
def test_only_the_text_changes_of_a_body(commands: list[str], text: str, turns: int):
    before = [{"role": "assistant", "content": "/rag"}] * (turns - 1)
    head = "".join(f"/{name} " for name in commands)

    def body(content: str) -> bytes:
        messages = [*before, {"role": "user", "content": content, "n": 1}]
        return b' {"temperature": 1.0e-1,\n"messages":' + json.dumps(messages).encode() + b', "model" : "m"} '

    plan = CHAT.plan(body(f"{head}.{text}"))
    assert plan.commands == tuple(commands)
    assert json.loads(plan.body) == json.loads(body(f".{text}"))
    assert plan.body.startswith(b' {"temperature": 1.0e-1,\n"messages":')
    assert plan.body.endswith(b', "model" : "m"} ')


def test_routes_with_a_prompt_and_without_one():
    for path in ("/completion", "/v1/completions", "/v/chat/completions", "/v1/messages", "/responses"):
        assert family_of(path) is not None, path
    for path in ("/v1/embeddings", "/infill", "/v1/chat/completions/input_tokens", "/v", "/v1", ""):
        assert family_of(path) is None, path
