"""JSON of strangers is read, or it is not, without an exception; fields of a head are found by name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.parts import decoded, field, fields, is_event_stream, read_time, read_whole, without
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
