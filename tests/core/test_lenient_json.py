"""JSON from outside is read, or it is not, without an exception."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.lenient_json import decoded


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
