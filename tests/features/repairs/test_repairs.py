"""Repairs keep every word, keep the order, do nothing twice, and leave a body alone that needs none."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from asked_chats import HI, LOOKED, REQUESTS, SCHEMA, call, chat, function, looked, say
from hollow_models import dense, info_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.answers.faults import FAULTS
from appliance.core.config.types import Config, ModelConfig
from appliance.core.exchange import Refused
from appliance.core.models.model import Model
from appliance.features.repairs.core.messages import FIRST, LAST
from appliance.features.repairs.core.plan import (
    OF_FAULTS,
    OF_MESSAGES,
    OF_TEMPLATES,
    OF_TOOLS,
    Attempt,
    final,
    kept_names,
    next_try,
    reason_of,
    repaired,
)
from appliance.features.repairs.core.schemas import NoGrammar, grammar_of
from appliance.features.repairs.refused import RefusedChat
from appliance.features.repairs.repairs import Repairs
from appliance.traffic.metrics import Metrics

NAMES = (*OF_MESSAGES, *OF_TOOLS)
COLOURS = ("red", "green", "blue", "Ä")
OWN_WORDS = {"Hello", "Continue", "Called", "with", "Result", "of", "the", "tool", "narrator", "arguments", "n"}
"""The last one is a line's end within JSON within a text."""
WORDS = st.lists(st.sampled_from(["red", "green", "blue", "Ä", "\\", '"', "{", "\n"]), min_size=1, max_size=3).map(
    " ".join
)
TEXTS = st.just("") | st.none() | WORDS
CONTENTS = TEXTS | st.lists(st.builds(lambda text: {"type": "text", "text": text}, WORDS), max_size=3)
CALLS = st.lists(
    st.builds(call, st.sampled_from(["{}", '{"q": "red"}', "{", "", "[1]", "7"]) | WORDS, st.sampled_from("abc")),
    min_size=1, max_size=2,
)  # fmt: skip
MESSAGES = st.lists(
    st.builds(say, st.sampled_from(["system", "developer", "user", "assistant", "narrator"]), CONTENTS)
    | st.builds(lambda content, calls: say("assistant", content, tool_calls=calls), TEXTS, CALLS)
    | st.builds(lambda content, to: say("tool", content, tool_call_id=to), CONTENTS, st.sampled_from("abcd")),
    max_size=6,
)  # fmt: skip


def body(*messages: object, **more: object) -> bytes:
    return json.dumps(chat(*messages, **more)).encode()


def fixed(messages: Sequence[object], *names: str) -> list[dict]:
    return json.loads(repaired(body(*messages), names).body)["messages"]


def words_of(value: object) -> list[str]:
    """All words that a model is given, as they follow each other."""
    match value:
        case dict():
            return [
                word
                for name, one in value.items()
                if name not in ("type", "id", "tool_call_id")
                for word in words_of(one)
            ]
        case list():
            return [word for one in value for word in words_of(one)]
        case str():
            return re.findall(r"\w+", value)
        case _:
            return []


def said_by(messages: list[dict], *roles: str) -> list[str]:
    return [word for one in messages if one["role"] in roles for word in words_of(one.get("content"))]


@given(MESSAGES, st.sampled_from(list(OF_MESSAGES)))
def test_no_word_is_lost_and_only_fixed_ones_are_added(messages: list[dict], name: str) -> None:
    before = words_of([{**one, "role": ""} for one in messages])
    after = words_of([{**one, "role": ""} for one in fixed(messages, name)])
    for colour in COLOURS:
        assert after.count(colour) == before.count(colour)
    assert set(after) - set(before) <= OWN_WORDS


@given(MESSAGES, st.sampled_from(list(OF_MESSAGES)))
def test_the_order_of_words_stays_but_for_those_of_the_system(messages: list[dict], name: str) -> None:
    def order(found: list[dict]) -> list[str]:
        others = [one for one in found if one["role"] not in ("system", "developer")]
        return [word for word in words_of([one.get("content") for one in others]) if word in COLOURS]

    # Words of the system come to the user's, in front of all others: the rest is still at the end.
    before, after = order(messages), order(fixed(messages, name))
    calls = [word for one in messages for word in words_of(one.get("tool_calls"))]
    if name in ("tools-as-text", "calls") or calls:
        return
    assert after[len(after) - len(before) :] == before or name in ("system-in-user", "user-turn")


@given(MESSAGES, st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
def test_a_repair_does_nothing_to_what_it_has_made(messages: list[dict], names: list[str]) -> None:
    for name in names:
        once = repaired(body(*messages), (name,))
        again = repaired(once.body, (name,))
        assert again.body is once.body
        assert again.names == ()


@given(MESSAGES, st.lists(st.sampled_from(NAMES), unique=True))
def test_only_repairs_that_change_something_are_named(messages: list[dict], names: list[str]) -> None:
    given_body = body(*messages)
    found = repaired(given_body, names)
    assert (found.body is given_body) == (found.names == ())
    assert set(found.names) <= set(names)


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_chat_is_the_same_object(name: str) -> None:
    plain = body(say("system", "Be kind."), HI, say("assistant", "Hello"), HI, tools=[function()], temperature=0.50)
    if name not in ("system-in-user",):
        assert repaired(plain, (name,)).body is plain


def test_other_members_keep_their_bytes() -> None:
    text = b'{ "temperature" : 0.50,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}] ,"x":1e5 }'
    assert repaired(text, ("alternate",)).body == (
        b'{ "temperature" : 0.50,"messages":[{"role":"user","content":"a\\n\\nb"}] ,"x":1e5 }'
    )


@given(st.binary(max_size=40) | st.sampled_from([b"", b"[]", b'{"messages": 7}', b'{"messages": [7]}', b"\xff"]))
def test_a_body_that_cannot_be_read_is_left_alone(content: bytes) -> None:
    assert repaired(content, NAMES).body is content


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        (
            "system-first",
            [say("system", "a"), HI, say("system", "b")],
            [say("system", "a\n\nb"), HI],
        ),
        ("system-in-user", [say("system", "a"), HI], [say("user", "a\n\nHi")]),
        ("join-last", [HI, say("assistant", "a"), say("assistant", "b")], [HI, say("assistant", "a\n\nb")]),
        ("user-first", [say("assistant", "a"), HI], [say("user", FIRST), say("assistant", "a"), HI]),
        ("user-last", [HI, say("assistant", "a")], [HI, say("assistant", "a"), say("user", LAST)]),
        ("user-turn", [say("system", "a")], [say("user", "a")]),
        ("developer", [say("developer", "a"), HI], [say("system", "a"), HI]),
        ("unknown-role", [say("narrator", "It rains."), HI], [say("user", "narrator: It rains."), HI]),
        ("empty", [HI, say("assistant", None)], [HI]),
        ("content", [say("user", 7)], [say("user", "7")]),
        ("plain-text", [say("user", [{"type": "text", "text": "a"}])], [say("user", "a")]),
        ("parts", [say("user", [{"type": "input_text", "text": "a"}])], [say("user", [{"type": "text", "text": "a"}])]),
        (
            "tools-as-text",
            LOOKED,
            [HI, say("assistant", '[Called look with {"q": "x"}]'), say("user", "[Result of look]\n42")],
        ),
        (
            "stray-results",
            [HI, say("tool", "42", tool_call_id="z")],
            [HI, say("user", "[Result of the tool]\n42")],
        ),
    ],
)
def test_examples(name: str, messages: list[object], expected: list[object]) -> None:
    assert fixed(messages, name) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("{", {"arguments": "{"}), ("look it up", {"arguments": "look it up"}), ("", {}), (None, {}),
     ("[1]", {"arguments": [1]}), ({"q": 1}, {"q": 1}), ([1], {"arguments": [1]}), ('{"q": 1}', {"q": 1})],
)  # fmt: skip
def test_arguments_become_an_object_in_text(arguments: object, expected: object) -> None:
    found = fixed(looked(call(arguments))["messages"], "calls")
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == expected


@pytest.mark.parametrize("identity", [None, 7])
def test_ids_become_text_and_results_find_their_calls(identity: object) -> None:
    asked = [HI, say("assistant", "", tool_calls=[call(identity=identity)]), say("tool", "42", tool_call_id=identity)]
    _, called, result = fixed(asked, "calls")
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]
    assert isinstance(result["tool_call_id"], str)


def test_short_ids_stay_apart() -> None:
    asked = [HI, say("assistant", "", tool_calls=[call(identity="a"), call(identity="b")]),
             say("tool", "1", tool_call_id="b"), say("tool", "2", tool_call_id="a")]  # fmt: skip
    _, called, first, second = fixed(asked, "call-ids")
    ids = [one["id"] for one in called["tool_calls"]]
    assert [second["tool_call_id"], first["tool_call_id"]] == ids
    assert all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in ids)
    assert len(set(ids)) == 2


def test_tools_of_other_dialects_are_wrapped() -> None:
    wanted = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    for what in ("flat tools", "Anthropic's tools"):
        found = json.loads(repaired(json.dumps(REQUESTS[what]).encode(), ("tools",)).body)["tools"][0]
        assert found["type"] == "function"
        assert {key: found["function"][key] for key in wanted} == wanted


def test_only_the_unheld_part_of_a_schema_goes_and_a_strict_tool_stays() -> None:
    properties = {"q": {"type": "date", "description": "When"}, "n": {"type": "integer"}}
    asked = body(HI, tools=[function({"type": "object", "properties": properties}), function(name="other")])
    first, second = json.loads(repaired(asked, ("tool-schemas",)).body)["tools"]
    assert first["function"]["parameters"]["properties"] == {"q": {"description": "When"}, "n": {"type": "integer"}}
    assert second == function(name="other")
    strict = body(HI, tools=[function({"type": "object", "properties": properties}, strict=True)])
    assert repaired(strict, ("tool-schemas",)).body is strict
    told = final(strict, refused("JSON schema error at #/properties/q: unrecognized type date", 500))
    assert told.status == 400
    assert (
        "'look' is strict, and parameters.q.type: 'date' is not a type" in json.loads(told.content)["error"]["message"]
    )


# ---- refusals --------------------------------------------------------------------------------------------------------


def refused(message: str, status: int = 400) -> Refused:
    error = {"code": status, "message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}
    return Refused(status, [], json.dumps({"error": error}).encode())


ALTERNATE = "Jinja Exception: Conversation roles must alternate user/assistant"


def test_a_reason_is_known_in_any_case() -> None:
    assert reason_of(refused(ALTERNATE.replace("alternate", "ALTERNATE"))) == reason_of(refused(ALTERNATE))
    assert reason_of(refused(ALTERNATE)) != reason_of(refused("Jinja Exception: odd"))


def test_what_does_not_help_is_followed_by_the_next_with_it() -> None:
    asked = body(say("narrator", "It rains."), HI)
    first = next_try(asked, [Attempt((), refused(ALTERNATE))])
    assert first is not None
    assert first.names == ("unknown-role",)
    second = next_try(asked, [Attempt((), refused(ALTERNATE)), Attempt(first.names, refused(ALTERNATE))])
    assert second is not None
    assert second.names == ("unknown-role", "alternate")


def test_a_repair_stays_where_another_reason_comes_up() -> None:
    asked = body(say("user", [{"type": "input_text", "text": "a"}]), HI)
    unsupported = refused("unsupported content[].type")
    found = next_try(asked, [Attempt((), unsupported), Attempt(("parts",), refused(ALTERNATE))])
    assert found is not None
    assert found.names == ("parts", "alternate")
    tried = [Attempt((), unsupported), Attempt(("parts",), refused(ALTERNATE))]
    assert kept_names(tried, found.names) == ("parts", "alternate")


@given(MESSAGES, st.sampled_from([ALTERNATE, "Jinja Exception: Unknown role: x", "Jinja Exception: odd"]))
def test_it_comes_to_an_end(messages: list[dict], message: str) -> None:
    asked, tried = body(*messages), [Attempt((), refused(message))]
    while (found := next_try(asked, tried)) is not None:
        assert found.names not in [each.names for each in tried]
        tried.append(Attempt(found.names, refused(message)))
    assert len(tried) < 20


@pytest.mark.parametrize(
    "message", ["image input is not supported - hint", "Failed to parse tools: Missing tool function"]
)
def test_a_mistake_of_the_client_is_a_400(message: str) -> None:
    told = final(body(HI), refused(message, 500))
    error = json.loads(told.content)["error"]
    assert (told.status, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "message", ["The model produced output that does not match", "out of memory", "", "request (9 tokens) exceeds"]
)
def test_a_fault_of_the_engine_is_left_as_it_is(message: str) -> None:
    given_answer = refused(message, 500)
    assert reason_of(given_answer) is None
    assert final(body(HI), given_answer) is given_answer


def model(template: str, **more: object) -> Model:
    info = info_of(dense(layers=1, keys={"tokenizer.chat_template": template}))
    return Model(id="m", source="path", path="/m.gguf", info=info, **more)


def helped(repairs: Repairs, of: Model, asked: bytes, *refusals: Refused) -> RefusedChat:
    one = repairs.begin("/v1/chat/completions", of, "b1", asked)
    assert one is not None
    for each in refusals:
        assert one.next_after(each) is None
    one.helped()
    return one


def test_what_helped_is_done_at_once_for_this_model_and_build() -> None:
    repairs, asked, other = Repairs(Metrics()), body(HI, HI), body(HI)
    of = model("no t-o-o-l-s")
    one = helped(repairs, of, asked, refused(ALTERNATE))
    assert one.names == ("alternate",)
    assert ("m", "b1") in repairs.remembered
    again = repairs.begin("/v1/chat/completions", of, "b1", asked)
    assert again is not None
    assert (again.body, again.names) == (one.body, one.names)
    plain = repairs.begin("/v1/chat/completions", of, "b1", other)
    assert plain is not None
    assert plain.body is other
    for build, changed in (("b2", of), ("b1", structs.replace(of, args=("--ctx-size", "1")))):
        fresh = repairs.begin("/v1/chat/completions", changed, build, asked)
        assert fresh is not None
        assert fresh.body is asked


@pytest.mark.parametrize(("template", "kept"), [("{{ tools }}", ()), ("{{ messages }}", ("tools-as-text",))])
def test_tools_stay_tools_where_the_template_knows_some(template: str, kept: tuple[str, ...]) -> None:
    repairs, asked = Repairs(Metrics()), body(*LOOKED)
    assert helped(repairs, model(template), asked, refused(ALTERNATE)).names == ("tools-as-text",)
    again = repairs.begin("/v1/chat/completions", model(template), "b1", asked)
    assert again is not None
    assert again.names == kept


def test_other_routes_configured_servers_and_what_is_switched_off_are_left_alone() -> None:
    repairs, of = Repairs(Metrics()), model("{{ messages }}")
    assert repairs.holds("/v1/chat/completions", of, "b1")
    assert not repairs.holds("/v1/audio/speech", of, "b1")
    assert not repairs.holds("/v1/chat/completions", structs.replace(of, config=ModelConfig(cmd="x")), "b1")
    assert repairs.holds("/v1/chat/completions", structs.replace(of, config=ModelConfig(cmd="x", engine="auto")), "b1")
    repairs.adopt(Config(repair_messages=False))
    assert not repairs.holds("/v1/chat/completions", of, "b1")


def test_a_later_refusal_about_something_else_is_the_clients() -> None:
    one = Repairs(Metrics()).begin("/v1/chat/completions", model(""), "b1", body(HI, HI))
    assert one is not None
    assert one.next_after(refused(ALTERNATE)) is None
    late = refused("request (9 tokens) exceeds the available context size")
    assert one.next_after(late) is late


def test_every_repair_has_a_reason() -> None:
    of_templates = [reason.repairs for _, reason in OF_TEMPLATES]
    assert {name for repairs in (*OF_FAULTS.values(), *of_templates) for name in repairs} == set(NAMES)
    assert set(OF_FAULTS) <= set(FAULTS)


# ---- grammars --------------------------------------------------------------------------------------------------------


def test_a_form_is_asked_for_by_a_grammar() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    found = json.loads(repaired(body(HI, response_format=form), ("grammar",)).body)
    assert "response_format" not in found
    assert 'root ::= "{" space root-0-b "}" space' in found["grammar"]


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "a"}, {"not": {}}, {"$ref": "#/none"}, 7])
def test_a_schema_that_would_be_held_in_part_makes_no_grammar(schema: object) -> None:
    with pytest.raises(NoGrammar):
        grammar_of(schema)
