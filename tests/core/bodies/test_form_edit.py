"""Replacing a field of a form: what a reader of the body finds then, and the bytes that stay."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, Preamble

from appliance.core.bodies.filters import rewrite_field, rewrite_urlencoded
from appliance.core.bodies.head import read_multipart
from appliance.errors import BadRequest

BOUNDARY = b"X-b0und"

Parsed = list[tuple[str, str | None, list[tuple[str, str]], bytes]]


def parsed(body: bytes) -> Parsed:
    """Name, file name, headers and content of each part. Raises ValueError for a damaged body."""
    decoder = MultipartDecoder(BOUNDARY)
    decoder.receive_data(body)
    decoder.receive_data(None)
    parts: Parsed = []
    while not isinstance(event := decoder.next_event(), Epilogue):
        match event:
            case Field():
                parts.append((event.name, None, list(event.headers), b""))
            case File():
                parts.append((event.name, event.filename, list(event.headers), b""))
            case Data():
                parts[-1] = (*parts[-1][:3], parts[-1][3] + event.data)
            case _:
                assert isinstance(event, Preamble)
    return parts


CONTENT = st.binary(max_size=40) | st.sampled_from(
    [b"", b"\r\n", b"\n--X", b"--X-b0und", b"a --X-b0und--", b"a--X-b0und\r\nb", b"\r\n--X-b0undary", b"llama"]
)
NAMES = st.sampled_from(["model", "file", "stream", "Model"])


@st.composite
def parts(draw: st.DrawFn, end: bytes) -> tuple[bytes, bytes]:
    """A part's head with its blank line, and its content."""
    name = draw(NAMES)
    file = draw(st.sampled_from(["", '; filename="a.wav"', "; filename=model"]))
    spelling = draw(st.sampled_from([f'name="{name}"', f"name={name}"]))
    disposition = (
        f"{draw(st.sampled_from(['Content-Disposition', 'content-disposition']))}: form-data; {spelling}{file}"
    )
    other = draw(st.sampled_from(["", "Content-Type: text/plain; charset=utf-8", "X-Name: model"]))
    lines = [disposition, other] if draw(st.booleans()) else [other, disposition]
    head = end.join(line.encode() for line in lines if line) + end + end
    return head, draw(CONTENT)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A multipart body, with any of the three line breaks."""
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r"]))
    body = draw(st.sampled_from([b"", b"preamble" + end, end]))
    for head, content in draw(st.lists(parts(end), max_size=4)):
        body += b"--" + BOUNDARY + draw(st.sampled_from([b"", b" \t"])) + end + head + content + end
    return body + b"--" + BOUNDARY + b"--" + draw(st.sampled_from([b"", end, end + b"epilogue"]))


@given(bodies(), st.sampled_from(["real", "", "x" * 50, "é/ü:1"]))
@example(b'--X-b0und\r\nContent-Disposition: form-data; name="model"\r\n\r\n--X-b0und--', "real")
@example(b"--X-b0und--\r\n", "real")
@example(b"--X-b0und\rContent-Disposition: form-data; name=model\r\r\nold\r\n--X-b0und--", "real")
def test_a_reader_finds_the_new_value_and_everything_else_as_it_was(body: bytes, value: str):
    try:
        before = parsed(body)
    except (ValueError, AttributeError):
        assume(False)
        return
    written = value.encode()
    expected = [(n, f, h, written if n == "model" and f is None else data) for n, f, h, data in before]
    if not any(n == "model" and f is None for n, f, *_ in before):
        expected.append(("model", None, [("Content-Disposition", 'form-data; name="model"')], written))
    result = rewrite_field(body, BOUNDARY, "model", value)
    assert parsed(result) == expected
    assert read_multipart(result, BOUNDARY).model == (value or None)
    assert rewrite_field(result, BOUNDARY, "model", value) == result


@given(st.data())
def test_the_bytes_around_the_value_stay(data: st.DataObject):
    end = data.draw(st.sampled_from([b"\r\n", b"\n", b"\r"]))
    around = st.lists(
        parts(end).filter(lambda part: b"=model" not in part[0] and b'="model' not in part[0]), max_size=3
    )
    mark = b"--" + BOUNDARY
    first, last = (b"".join(mark + end + head + content + end for head, content in data.draw(around)) for _ in range(2))
    old = data.draw(st.sampled_from([b"llama", b"", b" two\nlines"]))
    front = (
        first + mark + end + b"Content-Type: text/plain" + end + b"Content-Disposition: form-data; name=model" + end * 2
    )
    back = end + last + mark + b"--" + end
    body = front + old + back
    try:
        assume(len(parsed(body)) == body.count(mark + end))
    except (ValueError, AttributeError):
        assume(False)
    assert rewrite_field(body, BOUNDARY, "model", "real") == front + b"real" + back


@given(st.binary(max_size=80) | bodies().flatmap(lambda body: st.integers(0, len(body)).map(lambda at: body[:at])))
def test_damaged_bodies_never_raise_and_stay(body: bytes):
    result = rewrite_field(body, BOUNDARY, "model", "real")
    try:
        read_multipart(body, BOUNDARY)
    except BadRequest:
        assert result == body or b"real" in result
    else:
        assert read_multipart(result, BOUNDARY).model == "real"


def test_a_name_that_no_text_can_hold_is_no_error():
    assert rewrite_urlencoded(b"model=a", "model", "\ud800") == b"model=%3F"
    assert b"\r\n\r\n?\r\n" in rewrite_field(b"--X-b0und--", BOUNDARY, "model", "\ud800")


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"model=a&b=%20c", b"model=x%2Fy+z&b=%20c"),
        (b"b=1&model=a&&mod%65l=c", b"b=1&model=x%2Fy+z&&mod%65l=x%2Fy+z"),
        (b"model", b"model=x%2Fy+z"),
        (b"models=1", b"models=1&model=x%2Fy+z"),
        (b"", b"model=x%2Fy+z"),
    ],
)
def test_url_encoded(body: bytes, result: bytes):
    assert rewrite_urlencoded(body, "model", "x/y z") == result


@given(st.lists(st.tuples(st.sampled_from(["model", "a b", "é"]), st.text(max_size=5))), st.text(max_size=8))
def test_a_reader_of_a_url_encoded_body_finds_the_new_value(pairs: list[tuple[str, str]], value: str):
    result = rewrite_urlencoded(urlencode(pairs).encode(), "model", value)
    expected = [(key, value if key == "model" else old) for key, old in pairs]
    if not any(key == "model" for key, _ in pairs):
        expected.append(("model", value))
    assert parse_qsl(result.decode(), keep_blank_values=True) == expected


@given(st.binary(max_size=60))
def test_any_bytes_as_a_url_encoded_body(body: bytes):
    result = rewrite_urlencoded(body, "model", "real")
    assert dict(parse_qsl(result.decode("latin-1"), keep_blank_values=True))["model"] == "real"
