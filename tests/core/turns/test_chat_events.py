"""An engine's answer as events of a run, also of engines and servers that do it their own way."""

from __future__ import annotations

import json

import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.turns.chat import MAX_GARBAGE, ChatEvents
from appliance.core.turns.messages import (
    CallDelta,
    ReasoningDelta,
    RunEvent,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnUsage,
)


def record(value: object) -> bytes:
    return b"data: " + (value.encode() if isinstance(value, str) else json.dumps(value).encode()) + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: object) -> bytes:
    return record({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def call(index: int | None, call_id: str | None, name: str | None, arguments: object) -> dict[str, object]:
    piece: dict[str, object] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    piece |= {} if index is None else {"index": index}
    return piece | ({} if call_id is None else {"id": call_id})


DONE = record("[DONE]")
TYPICAL = (
    b": ping\n\n"
    + chunk(role="assistant", content=None)
    + chunk(reasoning_content="Hm.")
    + chunk(content="Gruß")
    + chunk(content=" Gott")
    + chunk(tool_calls=[call(0, "c1", "read_file", "")])
    + chunk(tool_calls=[call(0, None, None, '{"a"')])
    + chunk(tool_calls=[call(0, None, None, ":1}"), call(1, "c2", "list", "{}")])
    + chunk("tool_calls")
    + record({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}})
    + DONE
)
TYPICAL_EVENTS = [
    ReasoningDelta("Hm."),
    TextDelta("Gruß"),
    TextDelta(" Gott"),
    CallDelta(index=0, id="c1", name="read_file"),
    CallDelta(index=0, arguments='{"a"'),
    CallDelta(index=0, arguments=":1}"),
    CallDelta(index=1, id="c2", name="list", arguments="{}"),
    TurnUsage(prompt_tokens=7, completion_tokens=5),
    TurnEnded(finish_reason="tool_calls"),
]


def on_event(*chunks: bytes, closed: bool = False) -> list[RunEvent]:
    stream = ChatEvents()
    events = [event for data in chunks for event in stream.feed(data)]
    return events + (stream.close() if closed else [])


@given(st.lists(st.integers(0, len(TYPICAL)), max_size=20))
def test_a_stream_gives_the_same_events_however_it_is_cut(at: list[int]):
    assert on_event(*cut(TYPICAL, at), closed=True) == TYPICAL_EVENTS


@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"\n\n", b"data: {}", b"data: [", b"error: ", DONE, chunk(content="x")])
    )
)
def test_garbage_ends_in_exactly_one_way(chunks: list[bytes]):
    events = on_event(*chunks, closed=True)
    assert [isinstance(event, TurnEnded | TurnFailed) for event in events] == [False] * (len(events) - 1) + [True]


BOTH = [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}, {"index": 0, "delta": {"content": "a"}}]


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        # The last record may lack its empty line, and [DONE] if the answer had ended. Only the first choice counts.
        (chunk("stop", content="x") + b"data: [DONE]", [TextDelta("x"), TurnEnded(finish_reason="stop")]),
        (chunk("length", content="x"), [TextDelta("x"), TurnEnded(finish_reason="length")]),
        (record({"choices": BOTH}) + DONE, [TextDelta("a"), TurnEnded(finish_reason="")]),
        (record({"error": None}) + DONE, [TurnEnded(finish_reason="")]),
    ],
)
def test_how_a_stream_may_end(sent: bytes, events: list[RunEvent]):
    assert on_event(sent, closed=True) == events


def test_nothing_comes_after_the_end():
    assert on_event(DONE + chunk(content="x"), chunk(content="y"), closed=True) == [TurnEnded(finish_reason="")]


def test_a_stream_that_closes_before_the_answers_end_failed():
    failed = TurnFailed(reason="server_died", detail="the engine closed its stream before the answer ended")
    assert on_event(chunk(content="x"), b'data: {"choi', closed=True) == [TextDelta("x"), failed]
    assert on_event(closed=True) == [failed]


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        (record({"error": {"code": 500, "message": "context too small", "type": "server_error"}}), "context too small"),
        (b'error: {"code":500,"message":"context too small","type":"server_error"}\n\n', "context too small"),
        (b'event: error\ndata: {"error":{"message":"context too small"}}\n\n', "context too small"),
        (b"error: it broke\n\n", "it broke"),
        (record({"error": {"message": ""}}), "without a reason"),
    ],
)
def test_an_error_ends_the_turn_whatever_field_it_comes_in(sent: bytes, detail: str):
    wanted = [TextDelta("x"), TurnFailed(reason="unknown_error", detail=f"the engine reported an error: {detail}")]
    assert on_event(chunk(content="x") + sent + chunk(content="y") + DONE, closed=True) == wanted


def test_some_garbage_is_passed_over_and_more_is_not():
    assert on_event(*[record("{oops")] * MAX_GARBAGE, chunk(content="x")) == [TextDelta("x")]
    [failed] = on_event(*[record("{oops")] * (MAX_GARBAGE + 1), chunk(content="x"), closed=True)
    assert failed == TurnFailed(reason="unknown_error", detail="the engine's stream cannot be read: '{oops'")


def test_a_record_without_end_is_refused():
    [failed] = on_event(*[b"data: " + b"x" * (1 << 20)] * 5, closed=True)
    assert failed.detail.startswith("the engine's stream cannot be read: ")


def test_a_whole_message_at_the_end_counts_only_for_what_was_not_streamed():
    message = {"content": "Hi", "reasoning_content": "Hm.", "tool_calls": [call(None, "c1", "list", "{}")]}
    last = record({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    called = CallDelta(index=0, id="c1", name="list", arguments="{}")
    assert on_event(last + DONE)[:-1] == [ReasoningDelta("Hm."), TextDelta("Hi"), called]
    assert on_event(chunk(content="Hi") + last + DONE)[:-1] == [TextDelta("Hi"), ReasoningDelta("Hm."), called]
    assert on_event(chunk(tool_calls=[call(0, "c1", "list", "{}")]) + last + DONE)[:-1] == [
        called,
        ReasoningDelta("Hm."),
        TextDelta("Hi"),
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, "a", "x", ""), call(0, None, None, "1"), call(1, "b", "y", ""), call(1, None, None, "2")],
        [call(0, "a", "x", "1"), call(0, "b", "y", "2")],  # all calls with the index 0
        [call(None, "a", "x", "1"), call(None, "b", "y", "2")],  # none with any
        [call(None, "a", "x", ""), call(None, None, None, "1"), call(None, "b", "y", ""), call(None, None, None, "2")],
        [call(None, None, "x", "1"), call(None, None, "y", ""), call(None, None, None, "2")],
        [call(3, "a", "x", "1"), call(7, "b", "y", "2")],
        [call(0, "a", "x", ""), call(0, "a", "x", "1"), call(1, "b", "y", ""), call(1, "b2", None, "2")],
    ],
)
def test_pieces_of_calls_find_together(pieces: list[dict[str, object]]):
    together: dict[int, str] = {}
    for event in on_event(*(chunk(tool_calls=[piece]) for piece in pieces)):
        together[event.index] = together.get(event.index, "") + event.arguments
    assert list(together.items()) == [(0, "1"), (1, "2")]


@pytest.mark.parametrize(
    ("delta", "events"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [TextDelta("ab")]),
        ({"reasoning": "Hm."}, [ReasoningDelta("Hm.")]),
        ({"tool_calls": [call(0, "c", "f", {"a": 1})]}, [CallDelta(index=0, id="c", name="f", arguments='{"a": 1}')]),
        ({"tool_calls": [call(0, "c", "f", None)]}, [CallDelta(index=0, id="c", name="f")]),
        ({"tool_calls": [{"index": 0, "id": "c"}]}, [CallDelta(index=0, id="c")]),
        ({"tool_calls": None, "content": ""}, []),
        ({"content": 7}, []),
    ],
)
def test_what_other_servers_write(delta: dict[str, object], events: list[RunEvent]):
    assert on_event(chunk(**delta)) == events


def test_a_completion_in_one_piece():
    message = {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [call(None, "a", "f", "{}"), call(None, "b", "g", "{}")],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    assert ChatEvents().whole(json.dumps(body).encode()) == [
        TextDelta("Hi"),
        CallDelta(index=0, id="a", name="f", arguments="{}"),
        CallDelta(index=1, id="b", name="g", arguments="{}"),
        TurnUsage(prompt_tokens=3),
        TurnEnded(finish_reason="tool_calls"),
    ]


@pytest.mark.parametrize("body", [b"{}", b"", b"\xff\xfe", b'{"choices":[]}', b"[" * 100_000])
def test_an_answer_that_is_no_completion(body: bytes):
    [failed] = ChatEvents().whole(body)
    assert failed.detail.startswith("the engine's answer is not a chat completion: ")
    assert len(failed.detail) < 300


def test_an_error_in_one_piece():
    failed = TurnFailed(reason="unknown_error", detail="the engine reported an error: bad grammar")
    assert ChatEvents().whole(b'{"error":{"message":"bad grammar"}}') == [failed]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, b'{"error":{"code":400,"message":"too long"}}', "the engine answered 400: too long"),
        (502, b"<html>down</html>", "the engine answered 502: <html>down</html>"),
        (500, b"", "the engine answered 500: without a reason"),
        (500, b"\xff", "the engine answered 500: \ufffd"),
    ],
)
def test_a_refusal_is_told_in_the_engines_words(status: int, body: bytes, told: str):
    assert ChatEvents().refused(status, body) == [TurnFailed(reason="unknown_error", detail=told)]
