"""Whole answers as streams and back, in every dialect; the fake engine's own two forms are the yardstick."""

from __future__ import annotations

import copy
import json

import fake_dialects as fake
import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.answers.families import Family
from appliance.core.answers.forms import Begun, Torn, events_of, whole_of
from appliance.core.answers.translate import ChatRecords
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.bodies.sse import Decoder, ErrorInfo, SseEvent, encode

DIALECTS = {
    fake.Native: Family.COMPLETION,
    fake.Completion: Family.COMPLETION,
    fake.Chat: Family.CHAT,
    fake.Messages: Family.MESSAGES,
    fake.Responses: Family.RESPONSES,
}
FORMS = pytest.mark.parametrize(("kind", "family"), DIALECTS.items(), ids=lambda each: getattr(each, "__name__", None))


def generation(kind: type[fake.Dialect], pieces: list[str]) -> tuple[list[JsonObject], JsonObject]:
    """The same answer as the fake streams it, and as it gives it whole."""
    made = kind("m", "prompt", 3, {"stream_options": {"include_usage": True}})
    records = [*made.begin()]
    for piece in pieces:
        records += made.add(piece)
    records += made.end()
    events = Decoder().feed(b"".join(records))
    return [json.loads(event.data) for event in events], json.loads(json.dumps(made.whole()))


def streamed(family: Family, whole: JsonObject) -> list[JsonObject]:
    return [data for _, data in events_of(family, copy.deepcopy(whole)) if data is not None]


def round_trip(family: Family, whole: JsonObject) -> JsonObject:
    return whole_of(family, copy.deepcopy(streamed(family, whole)))


@FORMS
@given(pieces=st.lists(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_a_stream_becomes_the_whole_answer_that_the_engine_would_have_given(
    kind: type[fake.Dialect], family: Family, pieces: list[str]
):
    events, whole = generation(kind, pieces)
    joined = whole_of(family, events)
    if kind is fake.Native:
        joined["tokens"] = whole["tokens"]  # a whole answer has them on request alone
    assert joined == whole


@FORMS
@given(pieces=st.lists(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1), min_size=1, max_size=3))
def test_a_whole_answer_survives_being_streamed(kind: type[fake.Dialect], family: Family, pieces: list[str]):
    _, whole = generation(kind, pieces)
    assert round_trip(family, whole) == whole


@FORMS
def test_a_stream_from_a_whole_answer_has_the_events_that_the_engine_sends(kind: type[fake.Dialect], family: Family):
    events, whole = generation(kind, ["all of it"])
    ours = streamed(family, whole)
    assert list(dict.fromkeys(each.get("type") for each in ours)) == list(dict.fromkeys(e.get("type") for e in events))
    assert ours[-1].keys() >= {name for name in events[-1] if name not in ("timings", "usage")}


CALLS: list[JSON] = [
    {"id": "1", "type": "function", "function": {"name": "get", "arguments": '{"a":1}'}},
    {"id": "2", "type": "function", "function": {"name": "put", "arguments": "{}"}},
]
RICH: list[tuple[Family, JsonObject]] = [
    (
        Family.CHAT,
        {
            "id": "c",
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": CALLS},
                    "finish_reason": "tool_calls",
                    "logprobs": {"content": [{"token": "a", "logprob": -0.5}]},
                },
                {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"},
            ],
            "usage": {"total_tokens": 3},
        },
    ),
    (
        Family.MESSAGES,
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "get", "input": {"a": [1, {"b": None}]}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
    ),
    (
        Family.RESPONSES,
        {
            "id": "r",
            "object": "response",
            "status": "incomplete",
            "output": [
                {"type": "reasoning", "id": "x", "summary": []},
                {"type": "function_call", "id": "f", "call_id": "c", "name": "get", "arguments": "{}"},
                {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal"}]},
            ],
        },
    ),
]


@pytest.mark.parametrize(("family", "whole"), RICH)
def test_everything_that_an_answer_may_have_survives(family: Family, whole: JsonObject):
    assert round_trip(family, whole) == whole


def test_calls_of_tools_are_joined_by_their_index():
    def part(*calls: JSON) -> JsonObject:
        return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": None}]}

    whole = whole_of(
        Family.CHAT,
        [
            part({"index": 0, "id": "1", "type": "function", "function": {"name": "get", "arguments": ""}}),
            part({"index": 0, "function": {"arguments": '{"a"'}}, {"index": 1, "id": "2", "function": {"name": "put"}}),
            part({"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": {"arguments": "{}"}}),
        ],
    )
    match whole:
        case {"choices": [{"message": {"tool_calls": calls}}]}:
            assert calls == [CALLS[0], {"id": "2", "function": {"name": "put", "arguments": "{}"}}]
        case _:
            pytest.fail(str(whole))


@pytest.mark.parametrize(
    ("family", "events"),
    [
        (Family.CHAT, []),
        (Family.CHAT, [{"choices": []}]),
        (Family.MESSAGES, [{"type": "message_stop"}]),
        (Family.RESPONSES, [{"type": "response.created", "response": {}}]),
        (Family.COMPLETION, [{"index": 0, "content": "a"}, {"index": 1, "content": "b"}]),
    ],
)
def test_events_that_are_no_answer(family: Family, events: list[JsonObject]):
    with pytest.raises(Torn):
        whole_of(family, events)


BROKEN = ErrorInfo(message="the engine died", type="server_error", code=502, reason="upstream_failed")


@pytest.mark.parametrize("numbered", [True, False])
@given(pieces=st.lists(st.text(min_size=1), max_size=5), cut=st.integers(1, 4), after=st.integers(1, 9))
def test_a_response_that_fails_ends_with_the_next_number_and_its_own_id(
    numbered: bool, pieces: list[str], cut: int, after: int
):
    events, _ = generation(fake.Responses, [piece for piece in pieces if piece.isprintable()] or ["x"])
    told = [{**event, "sequence_number": at + 7} if numbered else event for at, event in enumerate(events[:after])]
    records = [encode(SseEvent(json.dumps(event), str(event["type"]))) for event in told]
    begun = Begun()
    for at in range(0, len(records), cut):
        begun.feed(b": ping\n\n")
        begun.feed(b"".join(records[at : at + cut]))
    [last] = Decoder().feed(begun.failed(BROKEN))
    failed = json.loads(last.data)
    response = failed["response"]
    assert last.name == failed["type"] == "response.failed"
    assert failed["sequence_number"] == len(records) + 7 * numbered
    assert (response["id"], response["status"]) == (events[0]["response"]["id"], "failed")  # type: ignore[index]
    assert (response["error"]["code"], response["error"]["message"]) == ("upstream_failed", "the engine died")


@pytest.mark.parametrize("said", [b"", b": ping\n\n", b"data: [DONE]\n\n", b"x\ndata: {\n\n", b"\n\ndata: []\n\n"])
def test_no_response_fails_that_has_not_begun(said: bytes):
    begun = Begun()
    begun.feed(said)
    assert begun.failed(BROKEN) == b""


RECORDS = st.sampled_from(
    [
        b"data: a\n\n",
        b"data: {}\n\n",
        b"data: b",
        b"data:c\n\n",
        b"\n",
        b"\r\n\r\n",
        b": d\n\n",
        b"event: e\ndata: f\n\n",
    ]
)


@given(st.lists(st.lists(RECORDS, max_size=4).map(b"".join)), st.lists(st.integers(0, 60), max_size=5))
def test_a_translator_reads_the_same_records_however_they_come(chunks: list[bytes], at: list[int]) -> None:
    whole = b"".join(chunks)
    records = [event.data for event in Decoder().feed(whole)]
    for pieces in (chunks, cut(whole, at)):
        reader = ChatRecords()
        read = [each for piece in pieces for each in reader.feed(piece)]
        assert [each if isinstance(each, str) else each.decode() for each in read] == records
