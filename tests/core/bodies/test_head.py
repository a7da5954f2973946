"""What the program reads of a request, and what it says about one it cannot read."""

from __future__ import annotations

import json

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.head import (
    EXTENSION,
    NO_SLOT,
    ODD_SLOT,
    RequestHead,
    is_container,
    multipart_boundary,
    read_json,
    read_multipart,
    read_query,
)
from appliance.errors import BadRequest

JSON = json_values(text=st.integers() | st.text(), leaves=20)


@given(
    st.dictionaries(st.text() | st.just(EXTENSION), JSON, max_size=5),
    st.none() | st.text(),
    st.none() | st.booleans(),
    st.booleans(),
)
def test_model_stream_and_extension_are_found_whatever_surrounds_them(
    body: dict[str, object], model: str | None, stream: bool | None, escaped: bool
):
    body |= {"model": model, "stream": stream}
    raw = json.dumps(body, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    head = read_json(raw)
    assert (head.model, head.stream, head.extended) == (model or None, bool(stream), EXTENSION in body)


NAMES = st.sampled_from(["prompt_cache_key", "session_id", "user", "cache_prompt"])


@given(st.dictionaries(NAMES, JSON | st.text() | st.booleans() | st.integers(-1, 9)), st.booleans())
def test_the_conversation_is_a_text_and_anything_else_is_left_to_the_engine(body: dict[str, object], escaped: bool):
    raw = json.dumps({"model": "m", **body}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    named = [each for name in ("prompt_cache_key", "session_id") if isinstance(each := body.get(name), str) and each]
    assert read_json(raw) == RequestHead(
        "m", conversation=named[0] if named else "", uncached=body.get("cache_prompt") is False
    )


LIMIT = 1 << 31
"""Slots have the numbers of a C int."""


@given(st.integers(-3, 3) | st.integers(LIMIT - 2, LIMIT + 2), st.sampled_from(("{}", "{}.0", "{}e0", '"{}"', "[{}]")))
def test_a_slot_is_a_number_of_the_engine_or_odd(number: int, spelling: str):
    slot = read_json(f'{{"id_slot": {spelling.format(number)}}}'.encode()).slot
    known = spelling[0] == "{" and -1 <= number < LIMIT
    assert slot == (number if known else ODD_SLOT)
    assert read_json(b'{"model": "m"}').slot == read_json(b'{"id_slot": null}').slot == NO_SLOT


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        (b"", "empty", None),
        (b" \n", "empty", None),
        (b"[]", "must be a JSON object, not an array", None),
        (b"null", "must be a JSON object, not null", None),
        (b'{"model": true}', "'model' must be a string, not true or false", "model"),
        (b'{"stream": "yes"}', "'stream' must be true or false, not a string", "stream"),
        (b'{"model": "a",\n "x": }', "at byte 21 (line 2, column 7)", None),
        (b'{"model": "a"', ": input data was truncated", None),
        (b'{"model": "\xff"}', "UTF-8", None),
        (b'{"a": ' + b"[" * 1_000_000, "nested too deeply", None),
    ],
)
def test_a_body_that_cannot_be_used_is_told_what_is_wrong_and_where(body: bytes, words: str, param: str | None):
    with pytest.raises(BadRequest) as caught:
        read_json(body)
    assert words in str(caught.value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("number", "name"), [("7", "7"), ("7.0", "7"), ("1.5", "1.5"), ("-1", "-1"), ("0", "0"), ("1e2", "100")]
)
def test_a_number_is_a_models_name(number: str, name: str):
    assert read_json(f'{{"model": {number}}}'.encode()).model == name


def test_of_repeated_names_the_last_counts():
    assert read_json(b'{"model": "a", "model": "b"}').model == "b"
    assert read_query(b"model=a&model=org%2Frepo%3AQ4&empty=") == {"model": "org/repo:Q4", "empty": ""}


def form(*fields: tuple[str, bytes], boundary: bytes = b"XX") -> bytes:
    parts = [
        b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (boundary, name.encode(), value)
        for name, value in fields
    ]
    return b"".join(parts) + b"--%s--\r\n" % boundary


def test_form_fields_are_found_around_a_file():
    body = form(
        ('name="file"; filename="a.wav"', b'RIFF\r\n--X\r\nname="model"' * 40_000),
        ('name="model"', "mödel".encode()),
        ('name="stream"', b"true"),
    )
    assert read_multipart(body, b"XX") == RequestHead("mödel", True)


def test_a_file_called_model_is_not_the_model():
    assert read_multipart(form(('name="model"; filename="m"', b"x")), b"XX").model is None


@pytest.mark.parametrize(
    "body",
    [b"", b"--XX", form(("name=\"model\"", b"a"))[:-20], form(("name=\"model\"", b"a" * 5000)), b"\r\n" * 1000],
)  # fmt: skip
def test_a_broken_form_is_refused(body: bytes):
    with pytest.raises(BadRequest):
        read_multipart(body, b"XX")


def test_too_many_parts_are_refused():
    with pytest.raises(BadRequest, match="more than 1000 parts"):
        read_multipart(form(*[('name="x"', b"")] * 1001), b"XX")


def test_the_boundary_is_found_where_there_is_one():
    assert multipart_boundary(None) is None
    assert multipart_boundary("application/json") is None
    assert multipart_boundary('Multipart/Form-Data; charset=x; boundary="a b"') == b"a b"
    with pytest.raises(BadRequest, match="boundary"):
        multipart_boundary("multipart/form-data")


def test_a_body_that_begins_as_json_is_no_form():
    assert [is_container(body) for body in (b" [1]", b'{"a": 1}', b"a=1", b"")] == [True, True, False, False]
