"""Messages requests as llama-server's chat completions: members, blocks, mistakes, and the table of the docs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types import ContentBlockParam, ToolUnionParam, message_create_params
from anthropic.types.beta import message_create_params as beta
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.anthropic.core.asking import AskedMessage, chat_body, read_members
from appliance.features.anthropic.core.members import CLIENT_TOOLS, MEMBERS, SERVER_TOOLS, Fate, table

JSON = Mapping[str, Any]
HI: JSON = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "f", "description": "F", "input_schema": {"type": "object"}}, {"name": "g"}]
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def asked(body: JSON, *, counts: bool = False, sees: bool = True) -> AskedMessage:
    members = read_members(json.dumps(body).encode())
    unread = chat_body(members, counts=counts, sees=sees, texts={}).unread
    texts = {member: f"{name}: text of {len(data)} bytes" for member, (name, data) in unread.items()}
    return chat_body(members, counts=counts, sees=sees, texts=texts)


def sent(body: JSON, **how: bool) -> dict[str, Any]:
    return json.loads(asked(body, **how).body)


def with_(**members: object) -> dict[str, Any]:
    return {**HI, **members}


def content(*blocks: object, role: str = "user", **how: bool) -> Any:
    return sent(with_(messages=[{"role": role, "content": list(blocks)}]), **how)["messages"]


def refused(body: JSON) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        asked(body)
    return error.value


def mistake(body: JSON, **how: bool) -> BadRequest | None:
    """The error of a request that has one; any other error is the program's."""
    try:
        assert sent(body, **how)["messages"] is not None
    except BadRequest as error:
        return error
    return None


# ---- members ---------------------------------------------------------------------------------------------------------


def test_a_plain_request_is_a_plain_chat() -> None:
    assert sent(HI) == {**HI, "stream": False}
    assert sent({**HI, "stream": True})["stream_options"] == {"include_usage": True}
    assert sent({"messages": HI["messages"]})["max_tokens"] == 4096
    assert sent(HI, counts=True) == {"model": "m", "messages": HI["messages"]}


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"system": "be brief"}, {}),
        ({"temperature": 0.5, "top_p": 1, "top_k": 5}, {"temperature": 0.5, "top_p": 1, "top_k": 5}),
        ({"stop_sequences": ["a", ""]}, {"stop": ["a"], "verbose": True, "response_fields": ["stopping_word"]}),
        ({"stop_sequences": "a"}, {"stop": ["a"]}),
        ({"max_tokens": 1 << 60}, {"max_tokens": (1 << 31) - 1}),
        ({"max_tokens": 7.0}, {"max_tokens": 7}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}},
         {"thinking_budget_tokens": 2000, "chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "enabled"}}, {"thinking_budget_tokens": 10000}),
        ({"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True, "a": 1}},
         {"chat_template_kwargs": {"enable_thinking": True, "a": 1}}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}, "reasoning_effort": "none"}, {"reasoning_effort": "none"}),
        ({"min_p": 0.1, "seed": 3, "cache_prompt": False, "lora": []},
         {"min_p": 0.1, "seed": 3, "cache_prompt": False, "lora": []}),
    ],
)  # fmt: skip
def test_members_that_are_used(members: JSON, told: JSON) -> None:
    found = sent(with_(**members))
    assert {name: found[name] for name in told} == told
    assert asked(with_(**members)).ignored == ()


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_structured_output(where: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    found = sent(with_(**{where: form if where == "output_format" else {"format": form}}))["response_format"]
    assert found == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_the_system_prompt_is_one_text_in_which_the_mark_of_claude_code_stays_the_same() -> None:
    bills = [f"x-anthropic-billing-header: cc_version=2.1; cch={mark}; x" for mark in ("a5145", "0ef01")]
    prompts = [sent(with_(system=[{"type": "text", "text": bill}, {"type": "text", "text": "B"}])) for bill in bills]
    assert prompts[0] == prompts[1]
    first = {"role": "system", "content": "x-anthropic-billing-header: cc_version=2.1; cch=fffff; x\nB"}
    assert prompts[0]["messages"][0] == first
    assert sent(with_(system=""))["messages"] == sent(with_(system=[]))["messages"] == HI["messages"]


# ---- tools -----------------------------------------------------------------------------------------------------------

F = {"name": "f", "description": "F", "parameters": {"type": "object"}}
G = {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("choice", "told", "functions"),
    [
        ({"type": "auto"}, "auto", [F, G]),
        ("any", "required", [F, G]),
        ({"type": "none"}, "none", [F, G]),
        ({"type": "tool", "name": "g"}, "required", [G]),
    ],
)
def test_a_choice_of_tools(choice: object, told: str, functions: list[JSON]) -> None:
    found = sent(with_(tools=TOOLS, tool_choice=choice))
    assert found["tool_choice"] == told
    assert found["tools"] == [{"type": "function", "function": each} for each in functions]
    one = sent(with_(tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert one["parallel_tool_calls"] is False


def test_a_choice_that_no_tool_is_left_for() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    for tools, choice in (
        ([search], {"type": "tool", "name": "web_search"}),
        ([search], {"type": "any"}),
        ([], {"type": "any"}),
        (TOOLS, {"type": "tool", "name": "none"}),
    ):
        assert refused(with_(tools=tools, tool_choice=choice)).param == "tool_choice"
    left = asked(with_(tools=[search, TOOLS[1]], tool_choice={"type": "auto"}))
    assert left.ignored == ("tool: web_search_20250305",)
    assert [each["function"]["name"] for each in json.loads(left.body)["tools"]] == ["g"]
    assert "tools" not in sent(with_(tools=[search], tool_choice={"type": "auto"}))


def test_tools_that_claude_knows_by_heart_get_their_schema() -> None:
    for kind in ("bash_20250124", "text_editor_20250728", "memory_20250818"):
        (tool,) = sent(with_(tools=[{"type": kind, "name": "t"}]))["tools"]
        assert "command" in tool["function"]["parameters"]["properties"]
        assert tool["function"]["description"]
    unknown = asked(with_(tools=[{"type": "computer_20251124", "name": "computer"}]))
    assert unknown.ignored == ("tool: computer_20251124",)
    assert json.loads(unknown.body)["tools"][0]["function"]["name"] == "computer"


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_a_round_of_tools_keeps_results_behind_their_calls() -> None:
    found = sent(
        with_(
            messages=[
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1]}},
                ]},
                {"role": "user", "content": [
                    {"type": "text", "text": "more"},
                    {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [
                        {"type": "text", "text": "one"}, {"type": "text", "text": "two"},
                    ]},
                ]},
            ]
        )
    )  # fmt: skip
    function = {"name": "f", "arguments": '{"x":[1]}'}
    assert found["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "a", "content": "Error: one\ntwo"},
        {"role": "user", "content": "more"},
    ]


def test_images_are_data_urls_and_a_tool_may_show_them_to_a_model_without_eyes() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert content(PNG) == [{"role": "user", "content": [part]}]
    link = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    assert content(link)[0]["content"][0]["image_url"]["url"] == "http://x/y.png"
    result = {"type": "tool_result", "tool_use_id": "a", "content": [PNG]}
    assert content(result) == [{"role": "tool", "tool_call_id": "a", "content": [part]}]
    assert content(result, sees=False)[0]["content"] == "[an image, which this model cannot see]"
    assert content(PNG, sees=False) == content(PNG)  # the engine refuses it in words


PDF = base64.b64encode(b"%PDF-1.7").decode()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "hello"}, "hello"),
        ({"type": "content", "content": "hello"}, "hello"),
        ({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"type": "base64", "media_type": "text/csv", "data": base64.b64encode(b"a,b").decode()}, "a,b"),
        ({"type": "base64", "media_type": "application/pdf", "data": PDF}, 'A "b": text of 8 bytes'),
    ],
)
def test_documents_are_text_between_marks(source: JSON, told: str) -> None:
    block = {"type": "document", "source": source, "title": 'A "b"', "context": "c"}
    marked = f'<document title="A \'b\'" context="c">\n{told}\n</document>'
    assert content(block)[0]["content"] == marked
    for inner in ([block], block, [{"type": "document", "source": {"type": "content", "content": [block]}}]):
        result = {"type": "tool_result", "tool_use_id": "a", "content": inner}
        assert marked in content(result)[0]["content"]


def test_search_results_and_blocks_of_anthropics_own_tools_are_text() -> None:
    found = {"type": "search_result", "title": "T", "source": "http://x", "content": [{"type": "text", "text": "w"}]}
    assert content(found)[0]["content"] == '<search_result title="T" source="http://x">\nw\n</search_result>'
    calls = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "llamas"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
            {"type": "web_search_result", "title": "Llama", "url": "http://l", "encrypted_content": "zzz"}]},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "compaction", "content": "so far"},
    ]  # fmt: skip
    body = with_(messages=[{"role": "assistant", "content": calls}])
    texts = [part["text"] for part in sent(body)["messages"][0]["content"]]
    assert texts == [
        "[server_tool_use]\nname: web_search\nquery: llamas",
        "[web_search_tool_result]\ntitle: Llama\nurl: http://l",
        "[compaction]\nso far",
    ]
    assert "redacted_thinking: data" in asked(body).ignored
    assert "block: server_tool_use" in asked(body).ignored


# ---- what is wrong ---------------------------------------------------------------------------------------------------

USED = [name for name, member in MEMBERS["request"].items() if member.fate is Fate.USED]
WRONG: Mapping[str, object] = {name: True for name in USED if name not in ("model", "stream", "system")} | {"system": 5}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_type_is_a_mistake_that_names_the_member(name: str) -> None:
    error = refused(with_(**{name: WRONG[name]}))
    assert error.param == name
    assert f"'{name}'" in str(error)


@pytest.mark.parametrize("count", [-2, -5, 8.5])
def test_a_number_of_tokens_that_cannot_be_is_a_mistake(count: float) -> None:
    for name, members in (
        ("max_tokens", {"max_tokens": count}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": count}}),
    ):
        assert str(refused(with_(**members))) == f"'{name}' must be a whole number, -1 or more, not {count}"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0].source"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]},
         "messages[0].content[0].source"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "?"}}]},
         "messages[0].content[0].source.data"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "http://x"}}]},
         "messages[0].content[0].source"),
        ({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, "messages[0]"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": 5}]},
         "messages[0].content[0].input"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_message_is_named_by_its_place(message: JSON, param: str) -> None:
    assert refused(with_(messages=[message])).param == param


def test_what_other_servers_would_do_is_refused_in_words_unless_it_is_empty() -> None:
    for name, value in (("mcp_servers", [{"type": "url", "url": "x"}]), ("thread", {"id": "t"}), ("n", 2)):
        assert refused(with_(**{name: value})).param == name
    assert asked(with_(mcp_servers=[], thread=None, n=1)).ignored == ()
    told = asked(with_(container={"id": "c"}, context_management={"edits": [1]}, diagnostics=None)).ignored
    assert told == ("container", "context_management")


def test_notes_are_fit_for_a_header() -> None:
    blocks = [{"type": f"a\r\nX: {number}" + "y" * 5000, "text": "t"} for number in range(100)]
    told = asked(with_(messages=[{"role": "user", "content": blocks}])).ignored
    assert 0 < len(told) <= 32
    assert all(each.isascii() and each.isprintable() and len(each) < 400 for each in told)


# ---- every member of the official types ------------------------------------------------------------------------------


def test_the_table_has_every_member_that_the_official_client_sends() -> None:
    kinds = (message_create_params.MessageCreateParamsBase, beta.MessageCreateParamsBase)
    known = {name for kind in kinds for name in get_type_hints(kind, include_extras=True)}
    assert known <= {*MEMBERS["request"], "prefill"}
    for each in get_args(ContentBlockParam):
        name = each.__name__.removesuffix("BlockParam")
        kind = {"Text": "text", "Image": "image", "Document": "document", "SearchResult": "search_result",
                "Thinking": "thinking block", "RedactedThinking": "redacted_thinking", "ToolUse": "tool_use",
                "ToolResult": "tool_result"}.get(name)  # fmt: skip
        if kind is not None:
            assert set(get_type_hints(each)) <= set(MEMBERS[kind]), kind
    words = {word for each in get_args(ToolUnionParam) for word in get_args(get_type_hints(each).get("type"))}
    dated = {word for word in words if isinstance(word, str)}
    assert {"bash_20250124", "web_search_20250305"} <= dated
    assert not {word for word in dated if not word.startswith((*CLIENT_TOOLS, *SERVER_TOOLS, "computer_", "browser_"))}


VALUES = st.sampled_from(
    [None, "", [], {}, True, False, 0, -1, 10**30, 1e300, "x" * 5000, ["x"], [None], [{}], {"type": None},
     {"type": "x"}, {"type": "enabled", "budget_tokens": "x"}, [[[]]], [{"type": "tool_use"}],
     [{"type": "tool_result"}]]
)  # fmt: skip
NAMES = sorted({name for members in MEMBERS.values() for name in members} | {"seed", "grammar", "role"})


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.booleans())
def test_any_value_of_any_member_is_a_chat_or_a_mistake_that_names_it(members: dict[str, Any], counts: bool) -> None:
    if (error := mistake({**HI, **members}, counts=counts)) is not None:
        assert re.split(r"[.\[]", error.param or "")[0] in {*members, "max_tokens"}


@given(st.sampled_from(sorted(set(MEMBERS) - {"request"})), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_any_block_is_read_or_named(kind: str, members: dict[str, Any]) -> None:
    block = {**members, "type": kind.removesuffix(" block")}
    for role in ("user", "assistant"):
        if (error := mistake(with_(messages=[{"role": role, "content": [block]}]))) is not None:
            assert str(error.param).startswith("messages[0]")


@pytest.mark.parametrize("kind", ["document", "tool_result"])
@pytest.mark.parametrize("depth", [1, 50, 150, 250, 400, 900, 20000])
def test_a_body_that_is_nested_deeply_is_read_or_a_mistake(kind: str, depth: int) -> None:
    opened, closed = b'{"type":"document","source":{"type":"content","content":[', b"]}}"
    if kind == "tool_result":
        opened, closed = b'{"type":"tool_result","tool_use_id":"a","content":[', b"]}"
    body = b'{"messages":[{"role":"user","content":[%b{"type":"text","text":"deep"}%b]}]}' % (
        opened * depth,
        closed * depth,
    )
    why, found = "", b""
    try:
        members = read_members(body)
        made = chat_body(members, counts=False, sees=True, texts={})
        assert made.unread == {}
        found = made.body
    except BadRequest as error:
        why = str(error)
    assert b"deep" in found or "nested" in why or "recursion" in why
    assert not why or depth > 50


PAGE = Path(__file__).parents[3] / "docs" / "dialects.md"


def test_the_page_has_the_fate_of_each_member() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Anthropic's Messages\n")[2]
    rows = section.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert rows == [f"| {member} | {fate} | {why} |" for member, fate, why in table()]
