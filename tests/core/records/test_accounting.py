"""Counting tokens: however an answer is cut, the same numbers, and those that a reader of the whole answer finds."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib

import pytest
from cutting import cut
from drawn_json import json_values
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.bodies.http_message import ContentDecoder
from appliance.core.records import accounting
from appliance.core.records.accounting import ErrorText, TokenCounter, Usage
from appliance.core.records.activity import Tokens

CUTS = st.lists(st.integers(0, 3000), max_size=12)


def count(chunks: list[bytes], *, streaming: bool, path: str = "/v1/x", coding: str | None = None) -> Usage:
    counter = TokenCounter(path, streaming=streaming, content_encoding=coding)
    for chunk in chunks:
        counter.feed(chunk)
    return counter.end()


def body(value: object, **more: str) -> Tokens:
    return count([json.dumps(value).encode()], streaming=False, **more).tokens


def stream(*values: object, end: str = "\n\n") -> Tokens:
    text = "".join(f"data: {json.dumps(value)}{end}" for value in values) + f"data: [DONE]{end}"
    return count([text.encode()], streaming=True).tokens


# ---- what the numbers are ----


TIMINGS = {
    "cache_n": 8,
    "prompt_n": 20,
    "prompt_ms": 100.5,
    "prompt_per_second": 199.0,
    "predicted_n": 50,
    "predicted_ms": 400.25,
    "predicted_per_second": 125.0,
}


def test_timings_override_usage():
    answer = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "timings": TIMINGS}
    told = count([json.dumps(answer).encode()], streaming=False)
    assert told.tokens == Tokens(
        cache_tokens=8, input_tokens=20, output_tokens=50, prompt_per_second=199.0, tokens_per_second=125.0
    )
    assert told.duration_ms(wall_ms=300.0) == 500
    assert told.duration_ms(wall_ms=600.9) == 600
    assert stream({"timings": {"prompt_n": 1}}, answer, {"choices": []}) == told.tokens


@pytest.mark.parametrize(
    ("drafts", "found"),
    [({"draft_n": 9, "draft_n_accepted": 6}, (9, 6)), ({"draft_n": 9}, (-1, -1)), ({"draft_n_accepted": 6}, (-1, -1))],
)
def test_drafted_tokens_need_both_numbers(drafts: dict[str, int], found: tuple[int, int]):
    tokens = body({"timings": TIMINGS | drafts})
    assert (tokens.draft_tokens, tokens.draft_acc_tokens) == found


@pytest.mark.parametrize(
    ("answer", "prompt"),
    [
        ({"timings": TIMINGS}, 28),
        ({"timings": TIMINGS, "usage": {"prompt_tokens": 28, "completion_tokens": 2}}, 28),
        ({"timings": {"prompt_n": 20}}, 20),
        ({"usage": {"prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 10}}}, 30),
        ({"usage": {"input_tokens": 20, "cache_read_input_tokens": 10}}, 30),
        ({"usage": {"completion_tokens": 20}}, -1),
    ],
)
def test_the_whole_prompt_counts_what_came_from_a_cache_once(answer: dict[str, object], prompt: int):
    assert count([json.dumps(answer).encode()], streaming=False).prompt == prompt
    assert count([b"data: " + json.dumps(answer).encode() + b"\n\n"], streaming=True).prompt == prompt


def test_vllm_metrics_become_rates():
    answer = {
        "usage": {"prompt_tokens": 110, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10}},
        "metrics": {
            "time_to_first_token_ms": 50,
            "mean_itl_ms": 20,
            "speculative_decoding": {"num_draft_tokens": 4, "num_accepted_draft_tokens": 3},
        },
    }
    assert body(answer) == Tokens(
        input_tokens=110,
        output_tokens=5,
        cache_tokens=10,
        draft_tokens=4,
        draft_acc_tokens=3,
        prompt_per_second=2000.0,
        tokens_per_second=50.0,
    )
    assert stream(answer) == body(answer)
    assert body({"metrics": {"time_to_first_token_ms": 0, "mean_itl_ms": 0}}) == Tokens()


def test_infill_counts_the_last_element():
    answer = [{"timings": {"prompt_n": 1}}, {"content": "[{]}", "timings": {"prompt_n": 2, "predicted_n": 3}}]
    assert body(answer, path="/infill") == Tokens(input_tokens=2, output_tokens=3)
    assert body(answer, path="/v1/completions") == Tokens()
    assert body([*answer, {"content": ""}], path="/infill") == Tokens()
    assert body([*answer, [{"timings": {"prompt_n": 4}}]], path="/infill") == Tokens()
    assert body([*answer, 1], path="/infill") == Tokens()
    assert body({"timings": {"prompt_n": 4}}, path="/infill") == Tokens(input_tokens=4)


@pytest.mark.parametrize("strange", ["12", True, -1, 1.5e300, 10**30, [], {}, None])
def test_a_number_that_is_none_is_unknown_and_costs_nothing_else(strange: object):
    usage = {"prompt_tokens": strange, "completion_tokens": 7, "prompt_tokens_details": strange}
    assert body({"usage": usage, "timings": {"prompt_ms": strange, "prompt_per_second": strange}}) == Tokens(
        output_tokens=7
    )


def test_what_only_looks_like_usage_is_not_counted():
    text = 'data: "usage": {"prompt_tokens": 5}'
    fake = {"usage": {"prompt_tokens": 5}}
    nested = {"content": text, "choices": [{"text": json.dumps(fake), "logprobs": fake, "usage": fake}], "x": fake}
    assert body(nested) == Tokens()
    assert stream(nested) == Tokens()
    assert count([b": " + json.dumps(fake).encode() + b"\n\nevent: " + json.dumps(fake).encode()], streaming=True) == (
        Usage(tokens=Tokens())
    )


def test_members_deeper_than_any_decoder_goes_leave_everything_unknown():
    deep = b'{"usage":{"prompt_tokens":' + b"[" * 30_000 + b"]" * 30_000 + b"}}"
    assert count([deep], streaming=False).tokens == Tokens()
    assert count([b"data: " + deep + b"\n\n"], streaming=True).tokens == Tokens()


# ---- equal to a reader of the whole, however it is cut ----

NUMBERS = st.none() | st.integers(-1, 40) | st.sampled_from([0, 2.0, 2.5, "7", True])
USAGE = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": NUMBERS,
        "input_tokens": NUMBERS,
        "completion_tokens": NUMBERS,
        "output_tokens": NUMBERS,
        "cache_read_input_tokens": NUMBERS,
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": NUMBERS}),
        "input_tokens_details": st.fixed_dictionaries({"cached_tokens": NUMBERS}),
    },
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"content": st.text(max_size=5)},
        optional={
            "usage": USAGE | st.none(),
            "response": st.fixed_dictionaries({"usage": USAGE}) | st.text(max_size=3),
            "message": st.fixed_dictionaries({"usage": USAGE}),
            "timings": st.fixed_dictionaries({"predicted_n": NUMBERS, "cache_n": NUMBERS}),
        },
    ),
    max_size=5,
)


def whole_stream(data: str) -> Tokens:
    """The same rules over the whole text, as plainly as they can be written."""
    known = {"input": -1, "output": -1, "cached": -1}
    timings: dict[str, object] = {}

    def number(value: object) -> int:
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else -1

    def first(holder: dict[str, object], *names: str) -> int:
        return next((found for name in names if (found := number(holder.get(name))) >= 0), -1)

    for line in data.split("\n"):
        if not line.startswith("data:") or line.strip() == "data: [DONE]":
            continue
        record = json.loads(line[5:])
        for holder in (record, record.get("response"), record.get("message")):
            usage = holder.get("usage") if isinstance(holder, dict) else None
            if usage is None:
                continue
            held = usage.get("input_tokens_details", usage.get("prompt_tokens_details", {}))
            details = held.get("cached_tokens")
            if not isinstance(details, int | float):
                details = None
            found = {
                "input": first(usage, "prompt_tokens", "input_tokens"),
                "output": first(usage, "completion_tokens", "output_tokens"),
                "cached": first(usage | {"details": details}, "cache_read_input_tokens", "details"),
            }
            for name, value in found.items():
                if value > 0 or known[name] < 0:
                    known[name] = value
        timings = record.get("timings", timings)
    cached, output = number(timings.get("cache_n")), number(timings.get("predicted_n"))
    return Tokens(
        input_tokens=known["input"],
        output_tokens=output if output >= 0 else known["output"],
        cache_tokens=cached if cached >= 0 else known["cached"],
    )


OPENAI = [{"usage": None}, {"usage": {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 5}}}]
ANTHROPIC = [
    {"message": {"usage": {"input_tokens": 30, "cache_read_input_tokens": 4}}},
    {"usage": {"input_tokens": 0, "output_tokens": 9}},
]
RESPONSES = [{"response": {"usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}}}}]


@example(OPENAI, "\n\n", [])
@example(ANTHROPIC, "\n\n", [7])
@example(RESPONSES, "\r\n\r\n", [])
@given(RECORDS, st.sampled_from(["\n\n", "\r\n\r\n", "\n: ping\n\n"]), CUTS)
def test_a_stream_counts_as_its_whole_text_does(records: list[dict[str, object]], end: str, at: list[int]):
    text = "".join(f"data: {json.dumps(record)}{end}" for record in records)
    assert count(cut(text.encode(), at), streaming=True).tokens == whole_stream(text)


@given(CUTS)
def test_the_last_timings_count_that_can_be_read(at: list[int]):
    told = [
        b'{"timings":{"prompt_n":1}}',
        b'{"timings":{"prompt_n":2}}',
        b'{"x":{"timings":{"prompt_n":3}}}',
        b'{"timings":{',
    ]
    whole = b"".join(b"data: " + one + b"\n\n" for one in told)
    assert count(cut(whole, at), streaming=True).tokens == Tokens(input_tokens=2)


PIECES = st.lists(
    st.sampled_from([b"data: ", b'{"usage":{"prompt_tokens":3}}', b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":"])
    | st.sampled_from([b"\n", b"\r\n", b'"usage"', b'"timings"', b'{"prompt_n":2}', b" ", b"\xff"])
)


@example([b'"usage":{}', b"\n", b"data: ", b'{"usage":{"prompt_tokens":3}}', b"\n"], [], True, "/v1/x")
@given(PIECES, CUTS, st.booleans(), st.sampled_from(["/v1/x", "/infill"]))
def test_garbage_counts_the_same_however_it_is_cut(parts: list[bytes], at: list[int], streaming: bool, path: str):
    whole = b"".join(parts)
    once = count([whole], streaming=streaming, path=path)
    assert count(cut(whole, at), streaming=streaming, path=path) == once
    assert count([bytes([byte]) for byte in whole], streaming=streaming, path=path) == once


# ---- long bodies: what is at their beginning or at their end ----

JSON = json_values(["usage", "timings", "a", '"', "\\", "é{["], text=st.text(max_size=8) | st.just(float("inf")))
NAMES = st.sampled_from(["usage", "timings", "metrics", "prompt_n", "x", "usag", "", "a\\", 'b"', "usages"])
OBJECTS = st.dictionaries(NAMES, JSON, max_size=6)
FORMATS = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (",", " : "))])


FILLING = "y" * (3 * accounting.MAX_HELD)


@given(OBJECTS, USAGE, st.sampled_from(["first", "last"]), FORMATS, st.booleans(), CUTS)
def test_a_long_body_counts_as_a_short_one_does(
    value: dict[str, object],
    usage: dict[str, object],
    place: str,
    form: tuple[int | None, tuple[str, str]],
    ascii_only: bool,
    at: list[int],
):
    """Whatever stands beside the usage, and looks like it, inside something else."""
    others = {f"x{name}": inner for name, inner in value.items()} | {
        "choices": [value, {"usage": {"prompt_tokens": 99}}]
    }
    long = {"usage": usage, **others, "z": FILLING} if place == "first" else {"z": FILLING, **others, "usage": usage}
    text = json.dumps(long, indent=form[0], separators=form[1], ensure_ascii=ascii_only).encode() + b"\n"
    assert len(text) > 2 * accounting.MAX_HELD
    places = [*at, *(len(text) - place for place in at), *range(0, len(text), 1 << 14)]
    assert count(cut(text, sorted(places)), streaming=False).tokens == body({"usage": usage})


@given(st.lists(OBJECTS | JSON, max_size=3), st.booleans(), CUTS)
def test_a_long_array_of_infill_counts_its_last_element(values: list[object], with_timings: bool, at: list[int]):
    last = {"content": FILLING, "a": values} | ({"timings": {"prompt_n": 5}} if with_timings else {})
    text = json.dumps([{"timings": {"prompt_n": 99}}, *values, last]).encode()
    places = [*at, *(len(text) - place for place in at), *range(0, len(text), 1 << 14)]
    expected = Tokens(input_tokens=5) if with_timings else Tokens()
    assert count(cut(text, sorted(places)), streaming=False, path="/infill").tokens == expected
    assert count(cut(text, sorted(places)), streaming=False).tokens == Tokens()


def test_a_name_with_an_escaped_quote_is_another_name():
    odd = {"z": FILLING, 'x\\"usage': {"prompt_tokens": 99}, "usage": {"completion_tokens": 1}}
    assert body(odd) == Tokens(output_tokens=1)
    assert body(dict(reversed(odd.items()))) == Tokens(output_tokens=1)
    odd = {"z": FILLING, 'x"usage': {"prompt_tokens": 99}}
    assert body(odd) == Tokens()
    assert body(dict(reversed(odd.items()))) == Tokens()


def test_usage_is_found_beside_what_no_decoder_takes():
    """Python's json writes NaN, and an engine in Python may."""
    text = json.dumps({"data": [float("nan")], "usage": {"prompt_tokens": 3}}).encode()
    assert count([text], streaming=False).tokens == Tokens(input_tokens=3)


def test_many_names_cost_little():
    deep = b'{"a":' + b'{"usage":' * 20_000 + b"1" + b"}" * 20_000 + b"}"
    hostile = deep + b'"usage":{' * 20_000
    began = time.thread_time()
    assert count([deep, hostile, deep], streaming=False).tokens == Tokens()
    assert time.thread_time() - began < 1


# ---- bounds ----


@given(st.integers(-3, 3), CUTS)
def test_a_line_beyond_the_limit_is_passed_over_however_it_is_cut(over: int, at: list[int]):
    head, tail = b'data: {"usage":{"prompt_tokens":3},"x":"', b'"}'
    long = head + b"x" * (accounting.MAX_LINE + over - len(head) - len(tail)) + tail
    whole = long + b'\n\ndata: {"usage":{"completion_tokens":2}}\n\n'
    places = [*at, *(place * 400 for place in at), len(long) - 1, len(long), len(long) + 1]
    expected = Tokens(input_tokens=3 if over <= 0 else -1, output_tokens=2)
    assert count(cut(whole, places), streaming=True).tokens == expected
    assert count([whole], streaming=True).tokens == expected


def test_a_large_body_is_never_held():
    row = b'{"embedding":[' + b"0.0123456789," * 5000 + b"0]},"
    counter = TokenCounter("/v1/embeddings", streaming=False)
    tracemalloc.start()
    try:
        counter.feed(b'{"data":[')
        for _ in range(200):
            counter.feed(row)
        counter.feed(b'{}],"usage":{"prompt_tokens":6}}')
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counter.end().tokens.input_tokens == 6
    assert peak < 1 << 20


# ---- content codings ----


def bare_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(data) + deflate.flush()


PACK = {
    "gzip": gzip.compress,
    "GZIP ": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "deflate": zlib.compress,
    "Deflate": bare_deflate,
    "identity": bytes,
}


@given(st.sampled_from(sorted(PACK)), CUTS, st.booleans())
def test_encoded_answers_count_like_plain_ones(coding: str, at: list[int], streaming: bool):
    answer = json.dumps({"x": "y" * 3000, "usage": {"prompt_tokens": 3}}).encode()
    plain = b"data: " + answer + b"\n\n" if streaming else answer
    assert count(cut(PACK[coding](plain), at), streaming=streaming, coding=coding).tokens == Tokens(input_tokens=3)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_what_cannot_be_decoded_is_unknown(coding: str):
    assert count([b'{"usage":{"prompt_tokens":3}}', b"more"], streaming=False, coding=coding).tokens == Tokens()


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]), CUTS)
def test_garbage_never_makes_the_decoder_raise(garbage: bytes, coding: str, at: list[int]):
    decoder = ContentDecoder(coding)
    for chunk in cut(garbage, at):
        assert all(decoder.feed(chunk))


def test_a_small_input_that_stands_for_a_huge_one_is_decoded_in_pieces_and_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("appliance.core.bodies.http_message.MAX_DECODED", 4 << 20)
    decoder = ContentDecoder("gzip")
    pieces = list(decoder.feed(gzip.compress(bytes(16 << 20))))
    assert decoder.broken
    assert sum(map(len, pieces)) <= 4 << 20
    assert max(map(len, pieces)) <= 256 << 10
    assert list(decoder.feed(b"more")) == []


# ---- errors ----


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b'{"error":{"message":" too long "},"message":"no"}', 400, "too long"),
        (b'{"error":"busy"}', 503, "busy"),
        (b'{"error":{"code":1},"message":"m"}', 500, "m"),
        (b'{"detail":"d"}', 422, "d"),
        (b'{"detail":[{"msg":"d"}]}', 422, "422 Unprocessable"),
        (b'{"error":{"message":""}}', 502, "502 Bad Gateway"),
        (b"<html>", 502, "502 Bad Gateway"),
        (b"", 599, "599"),
        (b"[" * 5000, 500, "500 Internal Server Error"),
        (b'{"error":"' + b"x" * 600 + b'"}', 500, "x" * 500),
        (b'{"error":"' + b"x" * accounting.MAX_ERROR + b'"}', 500, "500 Internal Server Error"),
    ],
)
def test_the_message_of_an_error(content: bytes, status: int, text: str):
    for coding, sent in ((None, content), ("gzip", gzip.compress(content))):
        error = ErrorText(coding)
        for chunk in cut(sent, [1, 5, 30]):
            error.feed(chunk)
        assert error.end(status).startswith(text)
