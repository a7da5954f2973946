"""llama-server's answers as Anthropic's events and messages, wherever a stream is cut, in the official types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cutting import cut
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from strict_types import error_of, event_of, message_of

from appliance.features.anthropic.core.answering import MessageAnswer, MessageTokens

USAGE = {"prompt_tokens": 13, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 10}}
JSON = dict[str, Any]


def chunk(finish: str | None = None, **said: object) -> JSON:
    head = {"id": "chatcmpl-1", "model": "alpha", "object": "chat.completion.chunk"}
    return {**head, "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def call(index: int, arguments: str, call_id: str | None = None, name: str | None = None) -> JSON:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return chunk(tool_calls=[{"index": index, "function": function} | ({"id": call_id} if call_id else {})])


def stream(*records: JSON, done: bool = True) -> bytes:
    text = "".join(f"data: {json.dumps(record, ensure_ascii=False)}\n\n" for record in records)
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def events(said: bytes) -> list[JSON]:
    """The events, each of which the official types know, with nothing else in it."""
    found: list[JSON] = []
    for record in said.decode().split("\n\n")[:-1]:
        name, _, data = record.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        event_of(event)
        found.append(event)
    return found


def translated(data: bytes, stops: tuple[str, ...] = ()) -> list[JSON]:
    answer = MessageAnswer("asked", stops)
    return events(answer.feed(data) + answer.end())


def texts(found: list[JSON], kind: str) -> str:
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    return "".join(delta.get(kind, "") for delta in deltas)


BEGIN = {**chunk(role="assistant", content=None), "prompt_progress": {"total": 13, "cache": 10, "processed": 10}}
END = [chunk("stop"), {"id": "chatcmpl-1", "choices": [], "usage": USAGE}]


def test_a_stream_has_the_events_of_the_api_in_their_order() -> None:
    start, ping, *found = translated(
        stream(BEGIN, {**BEGIN}, chunk(reasoning_content="hm"), chunk(content="Hi"), chunk(content=" you"), *END)
    )
    read = {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 10}
    assert start["message"] == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "alpha",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": read | {"output_tokens": 0},
    }
    assert ping == {"type": "ping"}
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    assert found == [
        {"type": "ping"},  # the prompt is being read
        {"type": "content_block_start", "index": 0, "content_block": thought},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": ""}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " you"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": read | {"output_tokens": 4},
        },
        {"type": "message_stop"},
    ]


def test_calls_of_tools_are_blocks_one_behind_the_other() -> None:
    found = translated(
        stream(
            BEGIN,
            chunk(content="I look."),
            call(0, "", "a", "f"),
            call(0, '{"x":'),
            call(0, "1}"),
            call(1, "{}", None, "g"),
            chunk("tool_calls"),
        )
    )
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert starts[1:] == [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_1_2", "name": "g", "input": {}},
    ]
    order = [(event["type"][14:], event["index"]) for event in found if event["type"].startswith("content_block_")]
    assert [each for each in order if each[0] != "delta"] == [
        (kind, at) for at in range(3) for kind in ("start", "stop")
    ]
    assert texts(found, "partial_json") == '{"x":1}{}'
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_pieces_of_a_call_that_is_over_are_an_error_and_not_lost() -> None:
    found = translated(stream(BEGIN, call(0, "{", "a", "f"), call(1, "{}", "b", "g"), call(0, "}"), *END))
    assert found[-1]["type"] == "error"
    assert found[-1]["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("finish", "word", "told"),
    [
        ("stop", "", ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", "<|im_end|>", ("end_turn", None)),
        ("length", "", ("max_tokens", None)),
        ("content_filter", "", ("refusal", None)),
        ("tool_calls", "END", ("tool_use", None)),
        ("anything else", "", ("end_turn", None)),
    ],
)
def test_the_reason_of_the_end(finish: str, word: str, told: tuple[str, str | None]) -> None:
    verbose = {"__verbose": {"stopping_word": word}}
    last = translated(stream(BEGIN, {**chunk(finish), **verbose}, *END[1:]), ("END",))[-2]["delta"]
    message = {"role": "assistant", "content": "x"}
    whole = {"choices": [{"message": message, "finish_reason": finish}], **verbose, "usage": USAGE}
    status, body = MessageAnswer("m", ("END",)).whole(json.dumps(whole).encode())
    found = json.loads(body)
    assert status == 200
    assert (last["stop_reason"], last["stop_sequence"]) == told == (found["stop_reason"], found["stop_sequence"])


def test_a_whole_answer() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}},
        {"id": "", "type": "function", "function": {"name": "g", "arguments": ""}},
        {"id": "c", "type": "function", "function": {"name": "h", "arguments": "no object"}},
    ]
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = {"id": "chatcmpl-9", "model": "alpha", "choices": [choice], "usage": USAGE}
    status, body = MessageAnswer("m").whole(json.dumps(whole).encode())
    found = json.loads(body)
    message_of(found)
    assert status == 200
    assert found["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1]}},
        {"type": "tool_use", "id": "toolu_9_2", "name": "g", "input": {}},
        {"type": "tool_use", "id": "c", "name": "h", "input": {"unreadable": "no object"}},
    ]
    assert (found["id"], found["model"], found["stop_reason"]) == ("msg_9", "alpha", "tool_use")
    assert found["usage"]["input_tokens"] == 3


def test_tokens_of_an_engine_that_counts_the_cache_in_its_timings_only() -> None:
    usage = {"prompt_tokens": 13, "completion_tokens": 4}
    last = translated(stream(chunk(content="x"), {"choices": [], "usage": usage, "timings": {"cache_n": 10}}))[-2]
    assert (last["usage"]["input_tokens"], last["usage"]["cache_read_input_tokens"]) == (3, 10)


def test_a_count() -> None:
    assert MessageTokens().whole(b'{"input_tokens":7,"object":"response.input_tokens"}') == (200, b'{"input_tokens":7}')
    assert MessageTokens().whole(b"{}")[0] == 502


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (
            400,
            {"code": 400, "message": "request (9 tokens) exceeds", "type": "exceed_context_size_error",
             "n_prompt_tokens": 9000, "n_ctx": 4096},
            (400, "invalid_request_error", "prompt is too long: 9000 tokens > 4096 maximum"),
        ),
        (500, {"code": 500, "message": "image input is not supported - hint", "type": "server_error"},
         (400, "invalid_request_error", "image input is not supported - hint")),
        (500, {"code": 500, "message": "out of memory", "type": "server_error"}, (500, "api_error", "out of memory")),
        (503, {"code": 503, "message": "Loading model", "type": "unavailable_error"},
         (503, "overloaded_error", "Loading model")),
        (404, {"code": 404, "message": "no", "type": "not_found_error"}, (404, "not_found_error", "no")),
    ],
)  # fmt: skip
def test_errors_have_the_types_that_clients_know(status: int, error: JSON, told: tuple[int, str, str]) -> None:
    content = json.dumps({"error": error}).encode()
    for answer in (MessageAnswer("m"), MessageTokens()):
        found, body = answer.refused(status, content)
        read = json.loads(body)
        error_of(read)
        assert (found, read["error"]["type"], read["error"]["message"]) == told
    ends = translated(stream(BEGIN, {"error": error}, chunk(content="more"), *END))
    assert (ends[-1]["error"]["type"], ends[-1]["error"]["message"]) == told[1:]
    assert len(ends) == 3  # start, ping, error: nothing follows it


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"proxy error: gone", b'{"error":"x"}', b"\xff", b'{"a":1}'])
def test_an_error_in_any_form_is_told(content: bytes) -> None:
    status, body = MessageAnswer("m").refused(502, content)
    error_of(json.loads(body))
    assert status == 502
    assert json.loads(body)["error"]["message"]


# ---- any stream ------------------------------------------------------------------------------------------------------

pieces = st.text(max_size=6)
records = st.lists(
    st.one_of(
        st.builds(lambda text: chunk(content=text), pieces),
        st.builds(lambda text: chunk(reasoning_content=text), pieces),
        st.just(BEGIN),
        st.just(chunk()),
        st.just({"choices": [], "timings": {"cache_n": 3}}),
        st.just({"choices": None, "usage": USAGE}),
    ),
    max_size=8,
)


@given(records, st.lists(st.integers(0, 2000), max_size=6))
def test_no_word_is_lost_wherever_the_stream_is_cut(said: list[JSON], places: list[int]) -> None:
    data = stream(*said, *END)
    answer = MessageAnswer("asked")
    found = events(b"".join(answer.feed(piece) for piece in cut(data, places)) + answer.end())
    assert found == translated(data)
    deltas = [choice["delta"] for record in said for choice in record.get("choices") or ()]
    assert texts(found, "text") == "".join(delta.get("content") or "" for delta in deltas)
    assert texts(found, "thinking") == "".join(delta.get("reasoning_content") or "" for delta in deltas)
    kinds = [event["type"] for event in found]
    assert kinds.count("message_start") == kinds.count("message_stop") == kinds.count("message_delta") == 1
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    opened = [event["index"] for event in found if event["type"] == "content_block_start"]
    assert opened == [event["index"] for event in found if event["type"] == "content_block_stop"]
    assert opened == list(range(len(opened)))


NAMES = ["choices", "delta", "content", "tool_calls", "usage", "error", "index", "message"]


@given(st.lists(json_values(NAMES), max_size=4), st.binary(max_size=20))
def test_nothing_makes_it_raise(said: list[object], rest: bytes) -> None:
    data = stream(*said) + rest  # type: ignore[arg-type]
    answer = MessageAnswer("asked")
    events(answer.feed(data) + answer.end())
    for each in (data, rest, json.dumps(said).encode()):
        for status, body in (answer.whole(each), answer.refused(500, each), MessageTokens().whole(each)):
            assert 200 <= status < 600
            json.loads(body)


def test_the_types_are_strict() -> None:
    good = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}
    event_of(good)
    for bad in ({"index": "0"}, {"more": 1}, {"delta": {"type": "text_delta", "text": "x", "more": 1}}, {"delta": {}}):
        with pytest.raises(ValidationError):
            event_of({**good, **bad})
