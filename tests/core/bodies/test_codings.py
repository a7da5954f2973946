"""Compressed bodies, and halves of characters."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from itertools import islice

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.codings import MAX_HALVES, MAX_MEMBERS, PIECE, inflated, without_halves
from appliance.errors import BadRequest, UnsupportedCoding


def _whole_of(content: bytes, coding: str) -> bytes:
    pieces = list(inflated(content, coding))
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


def _deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


CODINGS = {
    "gzip": gzip.compress,
    "X-GZip": gzip.compress,
    "deflate": zlib.compress,
    " Deflate": _deflated,
    "identity": bytes,
    "gzip, identity, deflate": lambda content: zlib.compress(gzip.compress(content)),
}


@given(content=st.binary(min_size=1, max_size=2000), coding=st.sampled_from(sorted(CODINGS)))
def test_every_coding_gives_the_body(content: bytes, coding: str) -> None:
    assert _whole_of(CODINGS[coding](content), coding) == content


@pytest.mark.parametrize("members", [2, MAX_MEMBERS])
def test_several_members_of_gzip_are_one_body(members: int) -> None:
    assert _whole_of(gzip.compress(b"a part ") * members, "gzip") == b"a part " * members


def test_a_body_of_very_many_members_is_refused() -> None:
    with pytest.raises(BadRequest, match="send one"):
        _whole_of(gzip.compress(b"") * 1_000_000, "gzip")


@given(content=st.binary(min_size=1, max_size=300), coding=st.sampled_from(["gzip", "deflate"]))
def test_other_bytes_are_refused_or_inflated(content: bytes, coding: str) -> None:
    with suppress(BadRequest):
        _whole_of(content, coding)


@given(size=st.integers(0, 5 * PIECE), cut=st.integers(1, 20))
def test_a_large_body_comes_in_pieces_and_a_cut_one_is_said_to_be_cut(size: int, cut: int) -> None:
    packed = gzip.compress(bytes(size) + b"a body that is long enough to be cut", 1)
    assert len(_whole_of(packed, "gzip")) == size + 36
    with pytest.raises(BadRequest, match="in the middle of its gzip data"):
        _whole_of(packed[:-cut], "gzip")


def test_a_bomb_costs_no_more_than_the_pieces_that_are_taken() -> None:
    first, second = islice(inflated(gzip.compress(bytes(100 << 20)), "gzip"), 2)
    assert (len(first), len(second)) == (PIECE, PIECE)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "x" * 1000])
def test_other_codings_are_named(coding: str) -> None:
    with pytest.raises(UnsupportedCoding, match="send the body plain"):
        inflated(gzip.compress(b"{}"), coding)


def _whole(value: object) -> object:
    """The value with U+FFFD for each half of a character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value


@given(
    texts=st.lists(
        st.text(st.characters(), max_size=10) | st.sampled_from(["\ud83d", "a\udca9", "\\\ud83d", "\U0001f4a9"])
    )
)
def test_halves_become_a_mark_and_all_else_stays(texts: list[str]) -> None:
    body = json.dumps(texts).encode()
    found = without_halves(body)
    assert json.loads(found) == _whole(texts)
    assert without_halves(found) is found


@given(value=json_values())
def test_a_body_without_halves_is_the_same_object(value: object) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    assert without_halves(body) is body


def test_of_very_many_halves_the_first_are_mended() -> None:
    body = b'["' + b"\\ud83d" * (MAX_HALVES + 5) + b'"]'
    assert without_halves(body).count(b"\\ufffd") == MAX_HALVES


@pytest.mark.parametrize("end", [b"\\", b"\\u", b"\\ud8", b"\\ud83d\\u", b"\\ud83d\\"])
def test_a_body_that_is_cut_stays_cut(end: bytes) -> None:
    assert without_halves(b'["' + end) == b'["' + end.replace(b"\\ud83d", b"\\ufffd")
