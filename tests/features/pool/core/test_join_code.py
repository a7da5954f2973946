"""The code that lets a box into a pool, and the tokens of the box that made it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.pool.core.join_code import LIFE, Codes, JoinCode, read_code

PLACES = st.ip_addresses().map(str) | st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}", fullmatch=True)
CODES = st.builds(
    JoinCode,
    addresses=st.lists(PLACES, min_size=1, max_size=6).map(tuple),
    port=st.integers(1, 65533),
    ca_public=st.binary(min_size=32, max_size=32),
    token=st.binary(min_size=16, max_size=16),
)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@given(code=CODES, every=st.integers(1, 40))
def test_a_code_survives_mails_and_lower_case(code: JoinCode, every: int) -> None:
    text = code.text()
    broken = "\n- ".join(text[at : at + every] for at in range(0, len(text), every))
    assert read_code(text) == read_code(f" {broken.lower()} ") == code


@given(code=CODES, data=st.data())
def test_one_wrong_character_is_a_typing_mistake(code: JoinCode, data: st.DataObject) -> None:
    text = code.text()
    at = data.draw(st.integers(5, len(text) - 2))  # bits of the last one may be padding
    wrong = data.draw(st.sampled_from([c for c in f"{ALPHABET}018!" if c != text[at]]))
    with pytest.raises(BadRequest, match="typing mistake"):
        read_code(text[:at] + wrong + text[at + 1 :])
    with pytest.raises(BadRequest, match="typing mistake"):
        read_code(text[:at])


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "not a code"), ("hello", "not a code"), ("LAP2-ABCD", "another version"), ("LAP1-", "typing mistake")],
)
def test_another_text_is_told_apart(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_code(text)


NOWHERE = CODES.map(lambda code: msgspec.structs.replace(code, addresses=()).text())


@given(st.text() | NOWHERE)
def test_any_text_is_a_code_or_refused_with_words(text: str) -> None:
    try:
        read_code(text)
    except BadRequest:
        pass


@given(st.floats(0, LIFE, exclude_max=True))
def test_a_token_is_good_once_and_for_ten_minutes(later: float) -> None:
    codes = Codes()
    codes.add(b"a", 100.0)
    codes.add(b"b", 100.0)
    codes.take(b"a", 100.0 + later)
    with pytest.raises(BadRequest, match="used already"):
        codes.take(b"a", 100.0 + later)
    with pytest.raises(BadRequest, match="too old"):
        codes.take(b"b", 100.0 + LIFE)


def test_ten_wrong_tokens_void_all_codes_and_later_ones_are_good() -> None:
    codes = Codes()
    codes.add(b"a", 0.0)
    for number in range(10):
        with pytest.raises(BadRequest, match="does not know"):
            codes.take(b"wrong%d" % number, 1.0)
    with pytest.raises(BadRequest, match="does not know"):
        codes.take(b"a", 2.0)
    codes.add(b"c", 3.0)
    codes.take(b"c", 4.0)
