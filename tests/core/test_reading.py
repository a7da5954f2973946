"""Small readers of what comes from outside: it is read, or refused in words, without an exception of another kind."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.headers import field, fields, is_event_stream, without
from appliance.core.lenient_json import decoded
from appliance.core.near_names import LONGEST, meant_or_all, near
from appliance.core.openai import QUOTED, ChatMessage, ToolCall, error_text, tool_call
from appliance.core.parameters import read_time, read_whole
from appliance.errors import BadRequest


class Point(Struct):
    x: int
    y: int = 0


POINT = msgspec.json.Decoder(Point)


@given(st.binary() | st.text())
def test_nothing_is_raised_for_any_bytes_or_text(raw: bytes | str) -> None:
    assert decoded(Point, raw) is None or b'"x"' in (raw if isinstance(raw, bytes) else raw.encode())


@given(st.integers(-(1 << 60), 1 << 60))
def test_a_kind_and_its_decoder_read_the_same(x: int) -> None:
    raw = json.dumps({"x": x, "more": None})
    assert decoded(Point, raw) == decoded(POINT, raw.encode()) == Point(x)


def test_what_cannot_be_read_is_none_for_each_reason() -> None:
    for raw in (b'{"x": "no"}', b"{", b"[" * 100_000, ""):
        assert decoded(Point, raw) is None
    assert decoded(dict[str, object], b'{"a":' * 100_000) is None
    assert decoded(list[str], b'["\xff"]') is None


NUMBERS = st.integers() | st.sampled_from([10**17, 10**18, 1 << 63, -1, 0])


@given(NUMBERS.map(str) | st.text(max_size=6) | st.sampled_from(["²", "٣", "1_0", "+1", " 1", "1" * 23, "9" * 5000]))
def test_a_whole_number_fits_into_the_store_or_is_refused_by_name(text: str) -> None:
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        assert read_whole(text, "since") == int(text) < 1 << 63
        return
    with pytest.raises(BadRequest, match=r"^since must be a whole number of at least 0, not .{0,100}$") as refused:
        read_whole(text, "since")
    assert refused.value.param == "since"


def test_bounds_are_part_of_the_refusal() -> None:
    assert read_whole("999", "limit", 1, 999) == 999
    for wrong in ("0", "1000", "x"):
        with pytest.raises(BadRequest, match="limit must be a whole number from 1 to 999, not"):
            read_whole(wrong, "limit", 1, 999)


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES | st.just(UTC)))
def test_a_time_is_the_same_moment_or_refused_by_name(when: datetime) -> None:
    try:
        moment = when.astimezone(UTC)
    except OverflowError:
        with pytest.raises(BadRequest, match=r"^after must be an RFC 3339 time"):
            read_time(when.isoformat(), "after")
    else:
        assert read_time(when.isoformat(), "after") == moment


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WRAPPED = st.recursive(
    TEXTS.flatmap(lambda text: st.sampled_from(((text, text), (text, {"message": text, "code": 400})))),
    lambda inner: inner.map(lambda pair: (pair[0], {"error": pair[1], "message": "outer"})),
    max_leaves=3,
)


@given(WRAPPED)
def test_the_words_of_an_error_are_found_in_every_form(given_: tuple[str, object]):
    text, error = given_
    assert error_text(msgspec.json.encode(error)) == text


@given(st.binary(max_size=2 * QUOTED))
def test_any_other_error_is_quoted(body: bytes):
    assert len(error_text(body)) <= QUOTED
    assert error_text(b"<" + body).startswith("<")


def test_an_error_that_is_nested_too_deeply_is_quoted():
    assert error_text(b'{"error":' * 100_000) == ('{"error":' * QUOTED)[:QUOTED]


@given(st.builds(tool_call, TEXTS, TEXTS, TEXTS, st.none() | st.integers(0, 9)), st.none() | TEXTS, TEXTS)
def test_a_message_is_read_as_it_was_written(call: ToolCall, content: str | None, thoughts: str):
    message = ChatMessage(role="assistant", content=content, reasoning_content=thoughts or None, tool_calls=[call])
    written = msgspec.json.encode(message)
    assert (b'"content":null' in written) == (content is None)
    read = msgspec.json.decode(written, type=ChatMessage)
    assert (read.text, read.thoughts, read.tool_calls) == (content or "", thoughts, [call])
    assert call.type == "function"


@given(st.dictionaries(TEXTS, TEXTS), st.lists(st.none() | TEXTS))
def test_parts_of_a_text_and_arguments_that_are_an_object_are_read(arguments: dict[str, str], parts: list[str | None]):
    body = msgspec.json.encode(
        {
            "content": [{"type": "text", "text": text} for text in parts],
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        }
    )
    read = msgspec.json.decode(body, type=ChatMessage)
    assert read.text == "".join(text or "" for text in parts)
    [call] = read.tool_calls or ()
    assert msgspec.json.decode(call.function.argument_text) == arguments


FIELDS = ((b"Content-Type", b"text/event-stream; charset=utf-8"), (b"X-Two", b"1"), (b"x-two", b"2"), (b"X-Tw", b"3"))


def test_fields_are_found_whatever_their_spelling() -> None:
    assert field(FIELDS, b"x-two") == b"1"
    assert field(FIELDS, b"x-three") is None
    assert fields(FIELDS, b"x-two") == [b"1", b"2"]
    assert is_event_stream(FIELDS)
    assert not is_event_stream(FIELDS[1:])


def test_fields_are_left_out_by_name_or_by_beginning() -> None:
    assert without(FIELDS, {b"x-two"}) == [FIELDS[0], FIELDS[3]]
    assert without(FIELDS, (), (b"x-",)) == [FIELDS[0]]
    assert without(FIELDS, {b"content-type"}) == list(FIELDS[1:])


def test_one_that_looks_like_it():
    assert near("Read-File", ["read_file", "write_file"]) == "read_file"
    assert near("raed_file", ["read_file", "write_file"]) == "read_file"
    assert near("weather", ["read_file"]) is None


def test_a_name_made_to_be_compared_for_long_is_like_none():
    known = ["a" * LONGEST]
    assert near("a" * LONGEST, known) == known[0]
    assert near("a" * (LONGEST + 1), known) is None
    assert near("a" * 50_000_000, known) is None


def test_many_known_names_are_not_all_told():
    assert meant_or_all("x", ["one", "two"]) == "; there are one, two"
    many = [f"name{n:04}" for n in range(3000)]
    told = meant_or_all("x", many)
    assert told.endswith("name0049 and 2950 more")
    assert len(told) < 1000
