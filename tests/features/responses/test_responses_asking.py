"""Requests of the Responses API as chat completions: every kind of item, every member, and what is refused."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.responses.core.asking import AskedResponse, asked_of, read_members
from appliance.features.responses.core.items import hidden
from appliance.features.responses.core.members import ITEMS, MEMBERS, PARTS, TOOLS

LOOK = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
FILES = {"type": "namespace", "name": "files", "description": "d", "tools": [{"type": "function", "name": "read"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
USER = {"role": "user", "content": "hi"}


def asked(given: object = "hi", *, streams: bool = False, **members: Any) -> AskedResponse:
    body = json.dumps({"model": "m", "input": given, **members}).encode()
    return asked_of(read_members(body), streams=streams)


def chat(given: object = "hi", *, streams: bool = False, **members: Any) -> dict[str, Any]:
    return json.loads(asked(given, streams=streams, **members).body)


def messages(*items: object, **members: Any) -> list[dict[str, Any]]:
    return chat(list(items), **members)["messages"]


def refused(given: object = "hi", **members: Any) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as caught:
        asked(given, **members)
    return caught.value.param, str(caught.value)


def called(*calls: tuple[str, str, str], content: str = "", **more: str) -> dict[str, Any]:
    """The turn of an assistant with these calls: their ids, names and arguments."""
    functions = [(call_id, {"name": name, "arguments": arguments}) for call_id, name, arguments in calls]
    made = [{"id": call_id, "type": "function", "function": function} for call_id, function in functions]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


# ---- items -----------------------------------------------------------------------------------------------------------


def test_a_text_is_a_message_of_the_user():
    assert chat()["messages"] == [USER]
    assert chat()["stream"] is False
    assert chat(streams=True)["stream_options"] == {"include_usage": True}


def test_codex_sends_one_system_message_first():
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]}
    context = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c"}]}
    assert messages(developer, developer, context, USER, developer, instructions="i") == [
        {"role": "system", "content": "i\n\nd\n\nd"},
        {"role": "user", "content": "c"},
        USER,
        {"role": "system", "content": "d"},
    ]
    assert messages(USER, instructions="") == [USER]
    assert messages(USER, instructions=[developer])[0] == {"role": "system", "content": "d"}
    picture = {"role": "system", "content": [{"type": "input_image", "image_url": "data:,"}]}
    assert len(messages(picture, USER, instructions="i")[0]["content"]) == 2


def test_parts_of_a_message():
    png = "data:image/png;base64,AAAA"
    parts = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": png, "detail": "auto"},
        {"type": "image_url", "image_url": {"url": png}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    [message] = messages({"role": "user", "content": parts})
    image = {"type": "image_url", "image_url": {"url": png}}
    assert message["content"] == [{"type": "text", "text": "see"}, image, image, parts[3]]


@pytest.mark.parametrize("url", ["data:text/plain;base64,", ""])
def test_a_text_file_is_its_text_behind_its_name(url: str):
    data = url + base64.b64encode("\ufeffä\n".encode()).decode()
    [message] = messages({"role": "user", "content": [{"type": "input_file", "filename": "a.md", "file_data": data}]})
    assert message["content"] == "a.md:\nä\n"


@pytest.mark.parametrize("data", [b"%PDF-1.7", b"%PDF-1.7\0", b"\xff\xfe", "ä".encode("latin-1")])
def test_the_text_of_any_other_file_is_asked_for(data: bytes):
    part = {"type": "input_file", "filename": "a.pdf", "file_data": base64.b64encode(data).decode()}
    items = [{"role": "user", "content": [part]}, {"type": "function_call_output", "call_id": "c", "output": [part]}]
    members = read_members(json.dumps({"input": items}).encode())
    places = ("input[0].content[0].file_data", "input[1].output[0].file_data")
    assert asked_of(members, streams=False).unread == dict.fromkeys(places, ("a.pdf", data))
    read = asked_of(members, streams=False, texts=dict(zip(places, ("one", "two"), strict=True)))
    assert read.unread == {}
    assert [each["content"] for each in json.loads(read.body)["messages"]] == ["a.pdf:\none", "a.pdf:\ntwo"]


def test_the_turn_of_an_assistant_is_one_message():
    assert messages(
        USER,
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"x":1}', "id": "f"},
        {"type": "function_call", "call_id": "c2", "name": "read", "namespace": "files", "arguments": ""},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": 'a"\n'},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "t"}]},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
    ) == [
        USER,
        called(
            ("c1", "look", '{"x":1}'),
            ("c2", "files__read", "{}"),
            ("c3", "patch", '{"input":"a\\"\\n"}'),
            content="I look.",
            reasoning_content="hm",
        ),
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "tool", "tool_call_id": "c2", "content": "t"},
        {"role": "tool", "tool_call_id": "c3", "content": "ok"},
    ]


def test_texts_of_an_assistant_are_all_kept():
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    one = {"role": "assistant", "content": "a", "phase": "commentary"}
    assert messages(one, refusal) == [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "No."}]}
    ]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAA"}, "s"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "content": None}, "s"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "c"}]}, "c"),
        ({"summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]}, "a\n\nb"),
        ({"summary": [], "encrypted_content": hidden("tiefe Gedanken ä")}, "tiefe Gedanken ä"),
    ],
)
def test_reasoning_comes_back_from_where_it_is(item: dict[str, Any], text: str):
    assert messages(USER, {"type": "reasoning", "id": "r", **item})[1]["reasoning_content"] == text


@pytest.mark.parametrize("text", ["gAAAAAB", "plain.!", "plain./w=="])
def test_reasoning_that_others_have_encrypted_is_left_out_and_told(text: str):
    read = asked([USER, {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": text}])
    assert json.loads(read.body)["messages"] == [USER]
    assert read.ignored == ["input[1].encrypted_content"]
    assert asked([USER, {"type": "reasoning", "id": "r", "summary": []}]).ignored == []


def test_outputs_of_tools():
    def output(given: object) -> Any:
        return messages({"type": "function_call_output", "call_id": "c", "output": given})[0]["content"]

    image = {"type": "input_image", "image_url": "data:,"}
    assert output([{"type": "input_text", "text": "t"}, image]) == [
        {"type": "text", "text": "t"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    assert output(None) == ""
    assert output([]) == "[]"
    assert output({"rows": 3}) == '{"rows":3}'
    assert output([{"text": "no type"}]) == '[{"text":"no type"}]'


def test_calls_that_only_openais_models_know_are_kept_with_their_results():
    shell = {"type": "local_shell_call", "id": "i", "call_id": "s", "action": {"command": ["ls"]}}
    call, result = messages(USER, shell, {"type": "local_shell_call_output", "id": "s", "output": "a b"})[1:]
    assert call == called(("s", "local_shell", '{"action":{"command":["ls"]}}'))
    assert result == {"role": "tool", "tool_call_id": "s", "content": "a b"}
    mcp = {"type": "mcp_call", "id": "m", "name": "find", "server_label": "x", "arguments": '{"q":1}'}
    call, result = messages(USER, {**mcp, "output": "found"})[1:]
    assert call == called(("m", "find", '{"q":1}'))
    assert result == {"role": "tool", "tool_call_id": "m", "content": "found"}
    screen = {"type": "computer_call_output", "call_id": "c", "output": {"type": "x", "image_url": "data:,"}}
    assert messages(screen)[0]["content"] == [{"type": "image_url", "image_url": {"url": "data:,"}}]


@pytest.mark.parametrize("kind", [kind for kind, (treatment, _) in ITEMS.items() if treatment == "ignored"])
def test_items_that_say_nothing_to_a_model_are_told(kind: str):
    read = asked([USER, {"type": kind, "id": "w"}])
    assert (json.loads(read.body)["messages"], read.ignored) == ([USER], [f"input[1] ({kind})"])


# ---- tools -----------------------------------------------------------------------------------------------------------


def test_tools_become_functions():
    read = asked(
        tools=[{**LOOK, "strict": True}, PATCH, FILES, {"type": "web_search"}, {"type": "function", "name": "n"}]
    )
    functions = [tool["function"] for tool in json.loads(read.body)["tools"]]
    assert [function["name"] for function in functions] == ["look", "patch", "files__read", "n"]
    assert functions[0] == {"name": "look", "description": "d", "parameters": LOOK["parameters"], "strict": True}
    assert functions[1]["description"] == 'Edits.\n\nThe input has to match this lark grammar:\nstart: "x"'
    assert functions[1]["parameters"]["required"] == ["input"]
    assert functions[3] == {"name": "n", "parameters": {"type": "object", "properties": {}}}
    assert read.ignored == ["tools[2].description", "tools[3] (web_search)"]
    assert (read.tools["files__read"].namespace, read.tools["patch"].custom) == ("files", True)
    nested = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    assert chat(tools=[nested])["tools"] == [nested]
    assert "tools" not in chat(tools=[{"type": "web_search"}])


EVERY_TOOL = ["look", "patch", "files__read"]


def allowed(mode: str, *tools: object) -> dict[str, object]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


@pytest.mark.parametrize(
    ("choice", "names", "mode"),
    [
        (None, EVERY_TOOL, None),
        ("auto", EVERY_TOOL, None),
        ("none", EVERY_TOOL, "none"),
        ("required", EVERY_TOOL, "required"),
        ({"type": "function", "name": "look"}, ["look"], "required"),
        ({"type": "function", "function": {"name": "look"}}, ["look"], "required"),
        ({"type": "function", "name": "read", "namespace": "files"}, ["files__read"], "required"),
        ({"type": "custom", "name": "patch"}, ["patch"], "required"),
        (allowed("auto", {"type": "custom", "name": "patch"}, {"type": "mcp"}), ["patch"], None),
        (allowed("required", {"type": "function", "name": "look"}), ["look"], "required"),
        (allowed("auto"), None, None),
    ],
)
def test_choices_of_tools(choice: object, names: list[str] | None, mode: str | None):
    told = chat(tools=[LOOK, PATCH, FILES, {"type": "mcp"}], tool_choice=choice)
    assert [tool["function"]["name"] for tool in told.get("tools", ())] == (names or [])
    assert told.get("tool_choice") == mode


# ---- the other members -----------------------------------------------------------------------------------------------


def test_members_with_another_name_in_a_chat():
    told = chat(max_output_tokens=9, temperature=0.5, top_p=1, parallel_tool_calls=False, reasoning={"effort": "none"})
    assert (told["max_tokens"], told["temperature"], told["top_p"]) == (9, 0.5, 1)
    assert (told["parallel_tool_calls"], told["reasoning_effort"]) == (False, "none")
    assert chat(max_output_tokens=1 << 60)["max_tokens"] == (1 << 31) - 1
    assert chat(max_output_tokens=-1)["max_tokens"] == -1


def test_forms_of_the_text():
    wanted = {"name": "x", "strict": True, "schema": SCHEMA}
    schema = {"type": "json_schema", "json_schema": wanted}
    assert chat(text={"format": {"type": "json_schema", **wanted}})["response_format"] == schema
    assert chat(text={"format": schema})["response_format"] == schema
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    for text in ({}, None, {"format": None}, {"format": {"type": "text"}}):
        assert "response_format" not in chat(text=text)
    assert refused(text={"format": {"type": "xml"}})[0] == "text.format.type"
    assert refused(text={"format": "json_object"})[0] == "text.format"
    assert refused(text={"format": {"type": "json_schema"}})[0] == "text.format.schema"


def test_log_probabilities():
    asks = {"logprobs": True, "top_logprobs": 3}
    assert chat(top_logprobs=3).items() >= asks.items()
    assert chat(include=["message.output_text.logprobs"])["top_logprobs"] == 1
    assert "logprobs" not in chat(top_logprobs=0)
    read = asked(top_logprobs=3, tools=[LOOK], streams=True)
    assert "logprobs" not in json.loads(read.body)
    assert read.ignored == ["top_logprobs"]
    assert chat(top_logprobs=3, tools=[LOOK]).items() >= asks.items()
    assert refused(top_logprobs=21)[0] == "top_logprobs"


def test_members_of_llama_server_pass_on():
    own = {"seed": 4, "stop": ["x"], "id_slot": 1, "chat_template_kwargs": {"a": 1}, "cache_prompt": False, "n": 1}
    told = chat(**own, return_progress=True)
    assert told.items() >= {name: value for name, value in own.items() if name != "n"}.items()
    assert told["return_progress"] is True
    assert chat(messages=[{"role": "user", "content": "no"}])["messages"] == [USER]
    assert refused(n=2)[0] == "n"


def test_what_has_no_effect_is_told():
    read = asked(
        text={"verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto", "context": "auto"},
        stream_options={"include_obfuscation": False},
        max_tool_calls=3,
        store=True,
        metadata={"a": "b"},
    )
    assert read.ignored == ["stream_options", "max_tool_calls", "text.verbosity", "reasoning.context"]
    assert read.summarises
    assert (read.echo["store"], read.echo["metadata"]) == (False, {"a": "b"})


WRONG_ITEMS = [
    ({"type": "item_reference", "id": "msg_1"}, "input[1]"),
    ({"type": "telepathy"}, "input[1].type"),
    ({"type": 5}, "input[1].type"),
    ({"content": "x"}, "input[1].role"),
    ({"role": "critic", "content": "x"}, "input[1].role"),
    ({"role": "user", "content": 5}, "input[1].content"),
    ({"role": "user", "content": [5]}, "input[1].content[0]"),
    ({"role": "user", "content": [{"type": "video"}]}, "input[1].content[0].type"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
    ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[1].content[0].file_id"),
    ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0].image_url"),
    ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[1].content[0].file_id"),
    ({"role": "user", "content": [{"type": "input_file", "file_url": "f"}]}, "input[1].content[0].file_url"),
    ({"role": "user", "content": [{"type": "input_file", "file_data": "ä"}]}, "input[1].content[0].file_data"),
    ({"role": "user", "content": [{"type": "input_file"}]}, "input[1].content[0].file_data"),
    ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[1].name"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[1].call_id"),
    ({"type": "function_call_output", "output": "x"}, "input[1].call_id"),
    ({"type": "reasoning", "summary": "x"}, "input[1].summary"),
    ("text", "input[1]"),
]
WRONG_CHOICES = [
    ("any", "tool_choice"),
    (5, "tool_choice"),
    ({}, "tool_choice.type"),
    ({"type": "web_search"}, "tool_choice"),
    ({"type": "mcp", "server_label": "x"}, "tool_choice"),
    ({"type": "function", "name": "nope"}, "tool_choice.name"),
    ({"type": "function"}, "tool_choice.name"),
    ({"type": "allowed_tools", "mode": "some", "tools": []}, "tool_choice.mode"),
    ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}, "tool_choice.tools[0]"),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}, "tool_choice"),
]
WRONG_TOOLS = [
    (5, "tools[0]"),
    ({"name": "x"}, "tools[0].type"),
    ({"type": "function"}, "tools[0].name"),
    ({"type": "function", "name": ""}, "tools[0].name"),
    ({"type": "function", "name": "f", "parameters": []}, "tools[0].parameters"),
    ({"type": "function", "name": "f", "strict": "yes"}, "tools[0].strict"),
    ({"type": "function", "name": "f", "description": 5}, "tools[0].description"),
    ({"type": "custom", "name": "f", "format": {"type": "grammar"}}, "tools[0].format.syntax"),
    ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
]
WRONG_MEMBERS = [
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "c"}}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"include": [5]}, "include[0]"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"max_output_tokens": -2}, "max_output_tokens"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": {}}, "input"),
    ({"instructions": [5]}, "instructions[0]"),
    *(({"input": [USER, item]}, place) for item, place in WRONG_ITEMS),
    *(({"tools": [LOOK, {"type": "mcp"}], "tool_choice": choice}, place) for choice, place in WRONG_CHOICES),
    *(({"tools": [tool]}, place) for tool, place in WRONG_TOOLS),
]


@pytest.mark.parametrize(("members", "param"), WRONG_MEMBERS)
def test_what_is_wrong_is_named_by_its_place_in_words(members: dict[str, Any], param: str):
    with pytest.raises(BadRequest) as caught:
        asked_of({"model": "m", "input": "hi", **members}, streams=False)
    assert caught.value.param == param
    assert f"'{param}'" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "input"])
def test_every_member_may_be_null_and_is_named_where_it_is_of_another_type(name: str):
    asked(**{name: None})
    wrong = 5 if int not in MEMBERS[name].kinds else "5"
    assert refused(**{name: wrong})[0] == name


def test_a_body_that_is_none():
    for body in (b"[]", b"{", b"\xff", b"[" * 10_000, b""):
        with pytest.raises(BadRequest):
            read_members(body)
    assert read_members(b"\xef\xbb\xbf{}") == {}


NAMES = (
    "type role content text name arguments call_id output summary tools format mode image_url file_data schema effort "
    "encrypted_content id namespace input function strict"
)
WORDS = st.sampled_from(
    [*ITEMS, *PARTS, *TOOLS, "user", "assistant", "json_schema", "grammar", "allowed_tools", "auto"]
)
ANY = json_values(NAMES.split(), text=WORDS | st.text(max_size=4))


@given(st.dictionaries(st.sampled_from([*MEMBERS, "n", "seed"]), ANY, max_size=5), ANY, st.booleans())
def test_any_request_is_translated_or_refused_with_the_member(members: dict[str, Any], items: Any, streams: bool):
    given = {"input": "hi" if items is None else items, **members}
    refusal: BadRequest | None = None
    try:
        read = asked_of(given, streams=streams)
    except BadRequest as error:
        refusal = error
    if refusal is not None:
        assert refusal.param is not None
        assert refusal.param.split(".")[0].split("[")[0] in given
        return
    told = json.loads(read.body)
    assert told["messages"]
    assert all(message["role"] in ("system", "user", "assistant", "tool") for message in told["messages"])
    json.dumps(read.echo)


TEXTS = st.text(st.characters(codec="utf-8"), min_size=3, max_size=9)


def texts_of(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    calls = [json.loads(call["function"]["arguments"])["input"] for call in message.get("tool_calls", ())]
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return [*parts, message.get("reasoning_content", ""), *calls]


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "developer", "reason", "call", "result"]), TEXTS), min_size=1
    )
)
def test_no_text_is_lost(said: list[tuple[str, str]]):
    def item(kind: str, text: str) -> dict[str, Any]:
        match kind:
            case "reason":
                return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
            case "call":
                return {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": text}
            case "result":
                return {"type": "function_call_output", "call_id": "c", "output": text}
            case _:
                return {"role": kind, "content": [{"type": "output_text", "text": text}]}

    told = messages(*(item(kind, text) for kind, text in said))
    for kind, text in said:
        assert any(text in one for message in told for one in texts_of(message)), kind
    for one, other in pairwise(told):
        assert one["role"] != "assistant" or other["role"] != "assistant"
