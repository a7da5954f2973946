"""Values of settings without their secrets."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core import secrets
from appliance.core.bodies.json_text import JSON

SECRET = "hunter2-hunter2"
SECRET_NAMES = st.sampled_from(secrets.SECRET_WORDS).flatmap(
    lambda word: st.sampled_from((word, word.lower(), f"settings.db{word.lower()}s", f"My{word.title()}"))
)
PLAIN_NAMES = st.text(st.sampled_from("bcdfgz"), min_size=1, max_size=4)
PLAIN = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="/"), max_size=8)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN_NAMES, inner, max_size=3), max_leaves=8
)


@given(PLAIN_NAMES, VALUES)
def test_what_no_name_calls_a_secret_is_shown_as_it_is(name: str, value: JSON):
    assert secrets.without_secret_values({name: value}) == {name: value}


@given(SECRET_NAMES, st.lists(st.sampled_from(("list", "dict")), max_size=4), st.booleans())
def test_no_secret_under_such_a_name_is_shown_however_deep_it_lies(name: str, path: list[str], outside: bool):
    inner: JSON = SECRET if outside else {name: SECRET}
    for kind in path:
        inner = [inner] if kind == "list" else {"bcd": inner}
    found = secrets.without_secret_values({name if outside else "bcd": inner})
    assert SECRET not in json.dumps(found)
    assert secrets.REDACTED in json.dumps(found)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("answer_tokens", 512, 512),
        ("api_token", "x", secrets.REDACTED),
        ("password", 1234, secrets.REDACTED),
        ("api_key", "", ""),
        ("use_auth", True, True),
        ("feed", "https://me:pw@host/a@b", f"https://{secrets.REDACTED}@host/a@b"),
        ("feed", "https://host/a@b", "https://host/a@b"),
    ],
)
def test_counts_switches_and_addresses(name: str, value: JSON, told: JSON):
    assert secrets.without_secret_values({name: value}) == {name: told}


@pytest.mark.parametrize(
    ("word", "secret"),
    [
        ("api_key=abc", "abc"),
        ("http://host/?api_key=abc&b=1", "abc&b=1"),
        ("api_key=", ""),
        ("api_key=true", ""),
        ("api_key=//x", ""),
    ],
)
def test_a_secret_within_a_word_goes_to_its_end(word: str, secret: str):
    assert {word[start:end] for start, end in secrets.secrets_within(word)} == ({secret} if secret else set())


@pytest.mark.parametrize(
    "piece", ["x", "a_", "a=", "://", "a://b:", "a ", "{{ x }}\n", "'", "\\", '"a":1,', "key=", "-u"]
)
def test_a_long_word_costs_little(piece: str):
    word = piece * (200_000 // len(piece))
    began = time.thread_time()
    list(secrets.secrets_within(word))
    assert time.thread_time() - began < 5


@given(st.lists(st.text("-uUhHpatkw:;,#/ \nxé", max_size=9), max_size=4))
def test_a_command_without_a_sign_of_a_secret_has_none(words: list[str]):
    if not secrets.may_hold_secret(" ".join(words)):
        assert [*secrets.secret_places(words)] == []


def test_what_anybody_may_write_is_no_secret():
    """It would be taken out of every line."""
    text = "ab Q8_0 auto"
    assert secrets.Secrets(["ab", "q8_0", "Q8_0", "auto"]).hidden(text) == text
