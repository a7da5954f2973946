"""JSON of strangers is read, or it is not, without an exception; fields of a head are found by name."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.parts import decoded, field, fields, is_event_stream, without


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
