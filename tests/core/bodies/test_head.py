"""What the program reads of a request: its path, its body as it is coded, and how fast that has to come."""

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
from appliance.core.bodies.pace import LEAST_RATE, Pace
from appliance.core.bodies.usual_path import PASSED, usual_path
from appliance.errors import BadRequest, UnsupportedCoding

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


MEMBERS = st.sampled_from(["prompt_cache_key", "session_id", "user", "cache_prompt"])


@given(st.dictionaries(MEMBERS, JSON | st.text() | st.booleans() | st.integers(-1, 9)), st.booleans())
def test_the_conversation_is_a_text_and_anything_else_is_left_to_the_engine(body: dict[str, object], escaped: bool):
    raw = json.dumps({"model": "m", **body}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    named = [each for name in ("prompt_cache_key", "session_id") if isinstance(each := body.get(name), str) and each]
    assert read_json(raw) == RequestHead(
        "m", conversation=named[0] if named else "", uncached=body.get("cache_prompt") is False
    )


MOST_SLOTS = 1 << 31
"""Slots have the numbers of a C int."""


@given(
    st.integers(-3, 3) | st.integers(MOST_SLOTS - 2, MOST_SLOTS + 2),
    st.sampled_from(("{}", "{}.0", "{}e0", '"{}"', "[{}]")),
)
def test_a_slot_is_a_number_of_the_engine_or_odd(number: int, spelling: str):
    slot = read_json(f'{{"id_slot": {spelling.format(number)}}}'.encode()).slot
    known = spelling[0] == "{" and -1 <= number < MOST_SLOTS
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


NAMES = st.text("av1pi-.%2F", min_size=1, max_size=6)
RESTS = st.lists(NAMES, max_size=3).map("/".join)
SLASHES = st.integers(1, 3).map("/".__mul__)


@given(
    st.sampled_from(["/v1", "/api"]), RESTS.filter(lambda rest: rest.split("/")[0] not in ("", "v1", "api")), st.data()
)
def test_slashes_and_one_version_too_many_change_nothing(base: str, rest: str, data: st.DataObject):
    plain = f"{base}/{rest}"
    before, between, after = (data.draw(SLASHES) for _ in range(3))
    end = data.draw(SLASHES | st.just(""))
    version = data.draw(st.sampled_from(["", f"{before}v1"]))
    assert usual_path(f"{version}{before}{base[1:]}{between}{rest}{end}") == plain == usual_path(f"{plain}{after}")


@given(st.sampled_from(PASSED), RESTS)
def test_what_another_server_reads_stays(place: str, rest: str):
    assert usual_path(place + rest) == place + rest


def test_other_paths_stay():
    for path in ("", "*", "/", "/v1", "/v1api", "/v1/models/v1/x", "/v1/stream//x", "/slots/0", "/v1/v1api"):
        assert usual_path(path) == path


LIMIT = 30.0
STEPS = st.lists(
    st.tuples(st.floats(0.0, LIMIT), st.one_of(st.integers(0, 2000), st.integers(0, 100 << 20))), max_size=30
)


@given(STEPS)
def test_a_client_within_the_limit_has_had_the_rate_in_every_stretch_but_for_the_limit(
    steps: list[tuple[float, int]],
) -> None:
    pace, kept = Pace(), 0
    for seconds, size in steps:
        if pace.behind + seconds > LIMIT:
            break
        pace.passed(seconds, size)
        kept += 1
    for first in range(kept):
        for last in range(first, kept):
            stretch = steps[first : last + 1]
            waited, passed = sum(seconds for seconds, _ in stretch), sum(size for _, size in stretch[:-1])
            assert passed >= (waited - LIMIT) * LEAST_RATE - 1


@given(STEPS)
def test_a_client_that_keeps_the_rate_is_never_behind(steps: list[tuple[float, int]]) -> None:
    pace = Pace()
    for seconds, more in steps:
        pace.passed(seconds, int(seconds * LEAST_RATE) + 1 + more)
        assert pace.behind == 0.0
