"""Chat completions as events and objects of the Responses API, however the stream is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sdk_types
from cutting import cut
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.json_text import JsonObject
from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.features.responses.core.answering import ResponseAnswer, ResponseTokens
from appliance.features.responses.core.asking import asked_of

PATCH = '*** Begin Patch\n"ä" \\ \U0001f999\n*** End Patch'
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "text"}},
    {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [{"type": "function", "name": "read"}]},
]
ASKED: JsonObject = {"model": "m", "input": "hi", "instructions": "i", "metadata": {"a": "b"}, "tools": TOOLS}
USAGE = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 3}}


def answer(**members: Any) -> ResponseAnswer:
    return ResponseAnswer(asked_of({**ASKED, **members}, streams=True), "1f", lambda: 7.5)


def delta(finish: str | None = None, **said: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}], "model": "m"}


def call(index: int, arguments: str, **more: object) -> dict[str, object]:
    name = {"name": more.pop("name")} if "name" in more else {}
    return delta(tool_calls=[{"index": index, "function": {**name, "arguments": arguments}, **more}])


def stream(*records: object) -> bytes:
    return "".join(f"data: {json.dumps(record)}\n\n" for record in records).encode() + b"data: [DONE]\n\n"


def told(*records: object, **members: Any) -> list[Any]:
    """The events, strictly read."""
    one = answer(**members)
    return sdk_types.events(one.feed(stream(*records)) + one.end())


END = [delta("stop"), {"choices": [], "usage": USAGE, "timings": {"cache_n": 3}}]
THOUGHTS = [delta(role="assistant", content=None), delta(reasoning_content="Let me "), delta(reasoning_content="see.")]
TEXT = [delta(content="Once"), delta(content=" upon")]
CALLS = [
    call(0, "", id="c1", name="look"),
    call(0, '{"x"'),
    call(1, '{"in', id="c2", name="apply_patch"),
    call(0, ":1}"),
    *(call(1, piece) for piece in cut('put": ' + json.dumps(PATCH) + "}", range(7, 90, 5))),
    call(2, "{}", id="c3", name="mcp__files__read"),
]


def test_the_events_of_an_answer_come_in_the_order_of_openais():
    found = told(*THOUGHTS, *TEXT, *END)
    assert [one.type.removeprefix("response.") for one in found] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [one.output_index for one in found[2:-1]] == [0] * 7 + [1] * 7
    for one in found[3:8] + found[10:15]:
        assert one.content_index == 0
        assert one.item_id == found[2 if one in found[:9] else 9].item.id
    response = found[-1].response
    assert (found[0].response.status, response.status) == ("in_progress", "completed")
    assert {one.response.id for one in (*found[:2], found[-1])} == {"resp_1f"}
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "Let me see."
    assert response.output_text == "Once upon"
    assert response.output == [found[8].item, found[-2].item]
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (9, 8, 17)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == round(8 * 11 / 20)
    assert (response.created_at, response.completed_at) == (7, 7)
    assert (response.instructions, response.metadata, response.model) == ("i", {"a": "b"}, "m")


def test_reasoning_is_the_summary_where_one_is_asked_for():
    found = told(*THOUGHTS, *TEXT, *END, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    assert [one.type.removeprefix("response.reasoning_summary_") for one in found[3:8]] == [
        *("part.added", "text.delta", "text.delta", "text.done", "part.done")
    ]
    item = found[-1].response.output[0]
    assert [part.text for part in item.summary] == ["Let me see."]
    assert item.content is None
    assert item.encrypted_content.startswith("plain.")
    assert found[-1].response.reasoning.summary == "auto"


def test_calls_of_tools_may_come_at_once_and_in_pieces():
    found = told(*TEXT, *CALLS, *END)
    message, look, patch, read = found[-1].response.output
    assert message.content[0].text == "Once upon"
    assert (look.type, look.name, look.call_id, look.arguments, look.status) == (
        *("function_call", "look", "c1", '{"x":1}'),
        "completed",
    )
    assert (patch.type, patch.name, patch.call_id, patch.input) == ("custom_tool_call", "apply_patch", "c2", PATCH)
    assert (read.name, read.namespace) == ("read", "mcp__files__")
    assert "".join(one.delta for one in found if one.type == "response.custom_tool_call_input.delta") == PATCH
    [done] = [one for one in found if one.type == "response.custom_tool_call_input.done"]
    assert done.input == PATCH


@pytest.mark.parametrize("arguments", ['{"input":5}', '{"inpu', "text", '{"patch":"x"}', '{"input":"a'])
def test_a_custom_tool_gets_what_the_model_wrote_where_that_is_not_one_input(arguments: str):
    found = told(call(0, arguments, id="c", name="apply_patch"), *END)
    assert found[-1].response.output[0].input == arguments
    said = "".join(one.delta for one in found if one.type == "response.custom_tool_call_input.delta")
    assert said == arguments


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_how_an_answer_ends(finish: str, status: str, reason: str | None):
    found = told(*THOUGHTS, *TEXT, delta(finish))
    response = found[-1].response
    assert (found[-1].type, response.status) == (f"response.{status}", status)
    assert (response.incomplete_details and response.incomplete_details.reason) == reason
    cut_short = "incomplete" if finish == "length" else "completed"
    assert [item.status for item in response.output] == ["completed", cut_short]


def test_log_probabilities_come_with_their_text():
    def token(text: str) -> dict[str, Any]:
        tops = [{"token": text, "logprob": -0.5, "bytes": [97], "id": 4}]
        return {"token": text, "logprob": -0.5, "bytes": [97], "id": 4, "top_logprobs": tops}

    first, second = delta(content="a"), delta(content="b")
    first["choices"][0]["logprobs"] = {"content": [token("a")]}
    second["choices"][0]["logprobs"] = {"content": [token("b")]}
    found = told(first, second, *END)
    assert [one.logprobs[0].token for one in found if one.type == "response.output_text.delta"] == ["a", "b"]
    assert [one.token for one in found[-1].response.output[0].content[0].logprobs] == ["a", "b"]


def test_a_refusal_is_a_part_of_its_own():
    found = told(delta(refusal="No"), delta(refusal="."), *END)
    assert [one.delta for one in found if one.type == "response.refusal.delta"] == ["No", "."]
    assert found[-1].response.output[0].content[0].refusal == "No."


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": 500, "message": "boom", "type": "server_error"}, "server_error"),
        ({"code": 429, "message": "boom", "type": "x"}, "rate_limit_exceeded"),
        ({"code": 400, "message": "boom", "type": "exceed_context_size_error"}, "context_length_exceeded"),
        ("boom", "server_error"),
    ],
)
def test_behind_an_error_comes_nothing(error: object, code: str):
    for before in ((), TEXT):
        one = answer()
        said = one.feed(stream(*before, {"error": error}, *TEXT)) + one.feed(stream(*TEXT)) + one.end()
        last = Decoder().feed(said)[-1]
        assert last.name == "response.failed"
        response = json.loads(last.data)["response"]
        assert (response["status"], response["error"]) == ("failed", {"code": code, "message": "boom"})


def test_what_the_program_and_llama_server_add_is_passed_on():
    progress, mark = {"processed": 1, "total": 2}, {"continued": {"after": 3}}
    one = answer()
    said = one.feed(b": continued on x\n\n" + stream(delta() | {"prompt_progress": progress}, {"appliance": mark}))
    said += one.feed(stream(delta(content="a") | {"timings": {"predicted_n": 1}}))
    assert said.startswith(b": continued on x\n\n")
    found = [json.loads(event.data) for event in Decoder().feed(said)]
    assert [one["type"] for one in found[:4]] == ["response.created"] + ["response.in_progress"] * 3
    assert (found[2]["prompt_progress"], found[3]["appliance"]) == (progress, mark)
    assert found[-1]["timings"] == {"predicted_n": 1}
    last = json.loads(Decoder().feed(one.feed(stream({"timings": {"cache_n": 2}})) + one.end())[-1].data)
    assert last["timings"] == {"cache_n": 2}
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 2


def test_a_stream_that_says_nothing_is_an_empty_response():
    found = told()
    assert [one.type for one in found] == ["response.created", "response.in_progress", "response.completed"]
    assert found[-1].response.output == []


RECORDS = st.lists(
    st.sampled_from([*THOUGHTS, *TEXT, *CALLS[:4], delta(refusal="n"), delta("length"), {"error": "boom"}, *END]),
    max_size=12,
)


def normal(response: Any) -> dict[str, Any]:
    """A response without the parts that a whole answer cannot tell: the order of what is said by turns."""
    texts: dict[str, str] = {}
    for item in response["output"]:
        parts = item.get("content") or item.get("summary") or ()
        text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
        key = item["type"] + str(item.get("call_id", "")) + str([part["type"] for part in parts][:1])
        texts[key] = texts.get(key, "") + text + item.get("arguments", "")
    return texts


@given(RECORDS, st.lists(st.integers(0, 5000), max_size=6))
def test_a_stream_says_the_same_wherever_it_is_cut(records: list[dict[str, Any]], cuts: list[int]):
    data = stream(*records)
    one, other = answer(), answer()
    whole = one.feed(data) + one.end()
    assert b"".join(map(other.feed, cut(data, cuts))) + other.end() == whole
    events = [json.loads(event.data) for event in Decoder().feed(whole)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    if {"error": "boom"} in records:
        return
    sdk_types.events(whole)
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert said == "".join(r["choices"][0]["delta"].get("content") or "" for r in records if r.get("choices"))
    for kind, member in (("output_text", "text"), ("reasoning_text", "text"), ("function_call_arguments", "arguments")):
        for done in (event for event in events if event["type"] == f"response.{kind}.done"):
            deltas = [
                event["delta"]
                for event in events
                if event["type"] == f"response.{kind}.delta" and event["item_id"] == done["item_id"]
            ]
            assert "".join(deltas) == done[member]


@given(RECORDS)
def test_a_stream_and_a_whole_answer_say_the_same(records: list[dict[str, Any]]):
    if {"error": "boom"} in records:
        return
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "refusal": ""}
    calls: dict[int, dict[str, Any]] = {}
    for record in records:
        said = record["choices"][0]["delta"] if record.get("choices") else {}
        for name in ("content", "reasoning_content", "refusal"):
            message[name] += said.get(name) or ""
        for piece in said.get("tool_calls", ()):
            known = calls.setdefault(piece["index"], {"id": None, "function": {"name": None, "arguments": ""}})
            known["id"] = known["id"] or piece.get("id")
            known["function"]["name"] = known["function"]["name"] or piece["function"].get("name")
            known["function"]["arguments"] += piece["function"]["arguments"]
    if any(call["function"]["name"] is None for call in calls.values()):
        return  # a call that never had a name
    content = {"choices": [{"message": {**message, "tool_calls": [calls[at] for at in sorted(calls)]}}]}
    status, body = answer().whole(json.dumps(content).encode())
    assert status == 200
    sdk_types.whole(body)
    one = answer()
    last = json.loads(Decoder().feed(one.feed(stream(*records)) + one.end())[-1].data)["response"]
    if not any(record.get("choices") and record["choices"][0]["delta"].get("tool_calls") for record in records[:-1]):
        assert normal(json.loads(body)) == normal(last)


def test_a_whole_answer_has_everything():
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "tool_calls": None}
    content = {"choices": [{"message": message, "finish_reason": "length"}], "usage": USAGE, "timings": {"cache_n": 1}}
    status, body = answer().whole(json.dumps(content).encode())
    found = sdk_types.whole(body)
    assert (status, found.status, found.output_text) == (200, "incomplete", "Hi")
    assert [item.status for item in found.output] == ["completed", "incomplete"]
    assert found.usage.total_tokens == 17
    assert json.loads(body)["timings"] == {"cache_n": 1}


@pytest.mark.parametrize(
    ("status", "body", "told_status", "error"),
    [
        (
            400,
            {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 5}},
            400,
            {"code": "context_length_exceeded", "type": "invalid_request_error", "param": "input", "n_ctx": 5},
        ),
        (500, {"error": {"code": 500, "message": "m", "type": "server_error"}}, 500, {"code": 500, "param": None}),
        (500, {"error": {"code": 500, "message": "Missing tool name"}}, 400, {"type": "invalid_request_error"}),
        (503, "gone", 503, {"message": "gone", "type": "server_error"}),
        (418, [], 418, {"type": "invalid_request_error"}),
        (400, {"error": "words"}, 400, {"message": "words"}),
    ],
)
def test_errors_of_an_engine(status: int, body: object, told_status: int, error: dict[str, object]):
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    for one in (answer(), ResponseTokens(asked_of(ASKED, streams=False), "1f", lambda: 7.5)):
        found, said = one.refused(status, content)
        assert found == told_status
        assert json.loads(said)["error"].items() >= error.items()
        assert isinstance(json.loads(said)["error"]["message"], str)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"choices":5}', b'{"error":{"message":"m"}}'])
def test_a_whole_answer_that_is_none(content: bytes):
    status, body = answer().whole(content)
    assert status >= 500
    assert json.loads(body)["error"]["message"]


@given(
    st.lists(
        st.binary(max_size=40)
        | json_values(["choices", "delta", "content", "tool_calls", "function", "error", "usage", "index"]).map(
            lambda one: f"data: {json.dumps(one)}\n\n".encode()
        ),
        max_size=6,
    )
)
def test_nothing_makes_it_raise(pieces: list[bytes]):
    one = answer()
    try:
        said = b"".join(map(one.feed, pieces)) + one.end()
    except RecordTooLong:
        return
    found = [json.loads(event.data) for event in Decoder().feed(said)]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    status, body = answer().whole(pieces[0] if pieces else b"{}")
    assert status in (200, 500, 502)
    json.loads(body)
