"""llama-server's answers in Ollama's words, however the stream is cut."""

from __future__ import annotations

import json
import math

import pytest
from cutting import cut
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.features.ollama.core.answering import Translator, idle_line, normalised, translated_error, vectors_of

TIMINGS = {"cache_n": 10, "prompt_n": 3, "prompt_ms": 2.5, "predicted_n": 4, "predicted_ms": 8.0}


class Stopped:
    """A clock of one moment."""

    def now(self) -> str:
        return "2026-01-02T03:04:05.000000006Z"

    def total(self) -> int:
        return 1000

    def loading(self) -> int:
        return 10


def translator(*, chat: bool = True) -> Translator:
    return Translator("m", Stopped(), chat=chat)


def stream(*records: object, done: bool = True) -> bytes:
    text = "".join(f"data: {json.dumps(record)}\n\n" for record in records)
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def delta(finish: str | None = None, **said: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def translated(data: bytes, *, chat: bool = True) -> list[dict]:
    one = translator(chat=chat)
    lines = one.feed(data) + one.end()
    assert not lines or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.splitlines()]


CALLS = [
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
    delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "g", "arguments": "{}"}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
]


def test_a_stream_becomes_lines_and_the_last_has_the_cost():
    says = delta(role="assistant", content=None), delta(reasoning_content="hm"), delta(content="Hi")
    thought, said, last = translated(stream(*says, {**delta("stop"), "timings": TIMINGS}))
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    always = {"model": "m", "created_at": "2026-01-02T03:04:05.000000006Z"}
    assert said == {**always, "done": False, "message": {"role": "assistant", "content": "Hi"}}
    assert last == {
        **always, "done": True, "done_reason": "stop",
        "message": {"role": "assistant", "content": ""}, "total_duration": 1000, "load_duration": 10,
        "prompt_eval_count": 13, "prompt_eval_duration": 2_500_000, "eval_count": 4, "eval_duration": 8_000_000,
    }  # fmt: skip


@pytest.mark.parametrize(("finish", "reason"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop")])
def test_reasons_of_an_end(finish: str, reason: str):
    assert translated(stream(delta(content="x"), delta(finish)))[-1]["done_reason"] == reason


def test_calls_of_tools_are_told_complete():
    *_, told, last = translated(stream(*CALLS, delta("tool_calls")))
    first, second = told["message"]["tool_calls"]
    assert first == {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}
    assert second["function"] == {"index": 1, "name": "g", "arguments": {}}
    assert last["done"]
    assert "tool_calls" not in last["message"]


def test_a_call_that_is_cut_short_is_left_out_and_a_broken_one_is_an_error():
    assert [line["done"] for line in translated(stream(*CALLS[:2], delta("length")))] == [True]
    [error] = translated(stream(*CALLS[:2], delta("tool_calls")))
    assert error == {"error": "the model called the tool 'f' with arguments that are not a JSON object"}


def test_behind_an_error_comes_nothing():
    lines = translated(stream(delta(content="a"), {"error": {"message": "it broke", "code": 500}}, delta(content="b")))
    assert [line.get("error") for line in lines] == [None, "it broke"]


def test_usage_counts_where_there_are_no_timings():
    [last] = translated(stream(delta("stop"), {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}))
    assert (last["prompt_eval_count"], last["eval_count"]) == (5, 6)


def test_comments_and_foreign_records_say_nothing():
    assert translator().feed(b": ping\n\ndata: 1\n\nevent: x\ndata: {}\n\n") == b""


def test_log_probabilities_lose_what_ollama_does_not_have():
    top = {"id": 1, "token": "a", "bytes": [97], "logprob": -0.5}
    record = {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{**top, "top_logprobs": [top]}]}}]}
    plain = {"token": "a", "bytes": [97], "logprob": -0.5}
    assert translated(stream(record))[0]["logprobs"] == [{**plain, "top_logprobs": [plain]}]


def test_generate_has_another_envelope():
    records = {"choices": [{"text": "x"}]}, {"choices": [{"text": "", "finish_reason": "length"}]}
    said, last = translated(stream(*records), chat=False)
    assert (said["response"], last["response"], last["done_reason"]) == ("x", "", "length")
    assert "message" not in said


PIECES = st.lists(
    st.builds(lambda text: delta(content=text), st.text(max_size=8))
    | st.builds(lambda text: delta(reasoning_content=text), st.text(max_size=8))
    | st.sampled_from(CALLS),
    max_size=12,
)


@given(PIECES, st.lists(st.integers(0, 9999), max_size=60), st.booleans())
def test_a_stream_says_the_same_wherever_it_is_cut(records: list[dict], cuts: list[int], chat: bool):
    data = stream(*records, {**delta("stop"), "timings": TIMINGS})
    whole, torn = translator(chat=chat), translator(chat=chat)
    assert b"".join(map(torn.feed, cut(data, cuts))) + torn.end() == whole.feed(data) + whole.end()


@given(PIECES)
def test_a_stream_and_a_whole_answer_say_the_same(records: list[dict]):
    lines = translated(stream(*records, {**delta("stop"), "timings": TIMINGS}))
    if "error" in lines[-1]:
        return
    said = "".join(record["choices"][0]["delta"].get("content", "") for record in records)
    thought = "".join(record["choices"][0]["delta"].get("reasoning_content", "") for record in records)
    assert "".join(line["message"]["content"] for line in lines) == said
    assert "".join(line["message"].get("thinking", "") for line in lines) == thought
    message = {"role": "assistant", "content": said, "reasoning_content": thought}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "timings": TIMINGS}
    status, whole = translator().whole(json.dumps(body).encode())
    told = json.loads(whole)
    assert status == 200
    assert (told["message"]["content"], told["message"].get("thinking", "")) == (said, thought)
    assert {**told, "message": None} == {**lines[-1], "message": None}


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_nothing_makes_it_raise(data: bytes, more: bytes):
    one = translator()
    for line in (one.feed(b"data: " + data + b"\n\n") + one.feed(more) + one.end()).splitlines():
        json.loads(line)
    status, body = translator().whole(data)
    json.loads(body)
    assert status in (200, 500, 502)
    json.loads(translated_error(500, data, "m")[1])


def test_infill_answers():
    answer = {"content": "x", "stop_type": "limit", "timings": TIMINGS}
    status, body = translator(chat=False).whole(json.dumps(answer).encode())
    told = json.loads(body)
    assert (status, told["response"], told["done_reason"], told["eval_count"]) == (200, "x", "length", 4)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, {"error": {"message": "no", "reason": "model_not_found"}}, (404, "model 'm' not found")),
        (401, {"error": {"message": "a key is needed"}}, (401, "unauthorized")),
        (501, {"error": {"message": "Infill is not supported here"}}, (400, '"m" does not support insert')),
        (400, {"error": {"message": "too long"}}, (400, "too long")),
        (400, {"error": "in Ollama's words"}, (400, "in Ollama's words")),
    ],
)  # fmt: skip
def test_errors_have_ollamas_shape(status: int, body: object, told: tuple[int, str]):
    found, content = translated_error(status, json.dumps(body).encode(), "m")
    assert (found, json.loads(content)) == (told[0], {"error": told[1]})
    assert translated_error(found, content, "m") == (found, content)


def test_small_things():
    idle = {"model": "m", "created_at": "t", "done": True, "response": "", "done_reason": "load"}
    assert json.loads(idle_line("m", "t", "load", chat=False)) == idle
    two = b'{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":3}}'
    assert vectors_of(two) == ([[1.0], [2.0]], 3)
    assert vectors_of(b"[]") is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.none() | st.integers(1, 25))
@example([4.958706615926702e-161], None)
def test_vectors_have_length_one(vector: list[float], dimensions: int | None):
    found = normalised(vector, dimensions)
    assert len(found) == min(len(vector), dimensions or len(vector))
    length = math.sqrt(sum(x * x for x in found))
    assert length == pytest.approx(1) or not any(vector[: len(found)])
