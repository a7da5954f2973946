"""Compressed bodies, and halves of characters."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.codings import inflated, without_halves
from appliance.errors import BadRequest, BodyTooLarge, UnsupportedCoding

MOST = 1 << 20


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
    assert inflated(CODINGS[coding](content), coding, MOST) == content


def test_several_members_of_gzip_are_one_body() -> None:
    assert inflated(gzip.compress(b"one ") + gzip.compress(b"body"), "gzip", MOST) == b"one body"


@given(content=st.binary(min_size=1, max_size=300), coding=st.sampled_from(["gzip", "deflate"]))
def test_other_bytes_are_refused_or_inflated_within_the_bound(content: bytes, coding: str) -> None:
    try:
        assert len(inflated(content, coding, 1000)) <= 1000
    except (BadRequest, BodyTooLarge):
        pass


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_a_body_that_is_cut_is_said_to_be(cut: int) -> None:
    with pytest.raises(BadRequest, match="in the middle of its gzip data"):
        inflated(gzip.compress(b"a body that is long enough to be cut")[:-cut], "gzip", MOST)


def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    with pytest.raises(BodyTooLarge):
        inflated(gzip.compress(bytes(100 << 20)), "gzip", MOST)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "x" * 1000])
def test_other_codings_are_named(coding: str) -> None:
    with pytest.raises(UnsupportedCoding, match="send the body plain"):
        inflated(gzip.compress(b"{}"), coding, MOST)


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
