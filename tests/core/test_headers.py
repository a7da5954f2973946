"""Fields of a head are found by name."""

from __future__ import annotations

from appliance.core.headers import field, fields, is_event_stream, without

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
