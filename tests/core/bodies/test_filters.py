"""What a configuration's filters do to a request, in which order, and how long that takes; fields of a form."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlencode

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from one_edit import delete_path, set_path
from speed_cases import timed
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, Preamble

from appliance.core.bodies.filters import compile_edits, is_protected, rewrite_field, rewrite_urlencoded, stripped_paths
from appliance.core.bodies.head import read_multipart
from appliance.core.config.additions import Json
from appliance.core.config.types import Filters, PeerFilters
from appliance.errors import BadRequest

CHAT = b'{"model": "llama", "temperature": 0.70, "messages": [{"role":"user","content":"hi"}], "stream":true}'


def applied(
    body: str,
    strip: str = "",
    params: dict[str, Json] | None = None,
    by_id: dict[str, dict[str, Json]] | None = None,
    *,
    use_model_name: str = "",
    requested: str = "llama",
    model: str | None = None,
) -> str:
    filters = Filters(strip_params=strip, set_params=params or {}, set_params_by_id=by_id or {})
    return compile_edits(filters, use_model_name).apply(body.encode(), requested, model=model).decode()


def test_the_order_is_name_strip_set_and_set_by_id():
    body = '{"model":"fast","a":1,"b":2,"c":3}'
    result = applied(
        body,
        "c, a",
        {"b": "set", "a": "set", "d": "set"},
        {"fast": {"d": "by id"}, "llama": {"d": "other"}},
        use_model_name="real",
        requested="fast",
        model="llama",
    )
    assert result == '{"model":"real","b":"set","a":"set","d":"by id"}'


@pytest.mark.parametrize(
    "path", ["model", ":model", r"\model", r"mod\el", "model.x", r"\m\o\d\e\l.0", ":model.-1", "model*", "mod?l", "m*"]
)
def test_no_spelling_of_the_model_is_stripped_or_set(path: str):
    body = '{"mod\\u0065l":"llama","x":1}'
    assert applied(body, path) == body
    assert applied(body, params={path: "other"}) == body
    assert applied(body, by_id={"llama": {path: "other"}}) == body


@pytest.mark.parametrize("path", ["models", "a.model", r"model\.x", "Model", "model "])
def test_names_that_only_look_like_the_model_are_parameters(path: str):
    assert not is_protected(path)
    assert applied('{"model":"llama"}', params={path: 1}) != '{"model":"llama"}'


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", []),
        ("model", []),
        ("top_k, temperature ,top_k", ["temperature", "top_k"]),
        ("b,a,model,:model", ["a", "b"]),
        ("a.b,\ta", ["a", "a.b"]),
    ],
)
def test_the_list_of_stripped_paths(text: str, paths: list[str]):
    assert stripped_paths(text) == paths


@pytest.mark.parametrize(
    ("use_model_name", "model", "sent"),
    [("", None, "llama"), ("real", None, "real"), ("", "bare", "bare"), ("real", "bare", "real")],
)
def test_the_name_that_is_sent(use_model_name: str, model: str | None, sent: str):
    edits = compile_edits(Filters(), use_model_name)
    assert json.loads(edits.apply(CHAT, "llama", model=model))["model"] == sent
    assert edits.apply(CHAT, "llama", model=model) == CHAT.replace(b'"llama"', json.dumps(sent).encode())
    assert (edits.sent_model(model) or "llama") == sent
    assert edits.touches("llama", model=model) is (sent != "llama")


def test_a_name_is_written_as_json():
    assert applied('{"model":"a"}', use_model_name='q"\\é') == '{"model":"q\\"\\\\é"}'
    assert applied('{"model":"a"}', use_model_name="\ud800") == '{"model":"\\ud800"}'


def test_values_are_written_as_json():
    values: dict[str, Json] = {"a": None, "b": [1, 2.5, True], "c": {"d": "é"}, "e": "\ud800", "f": 10**30}
    expected = '{"a":null,"b":[1,2.5,true],"c":{"d":"é"},"e":"\\ud800","f":1000000000000000000000000000000}'
    assert applied("{}", params=values) == expected


@pytest.mark.parametrize(
    ("filters", "touched"),
    [
        (Filters(), set[str]()),
        (Filters(strip_params="model, ,"), set[str]()),
        (Filters(strip_params="a"), {"llama", "alias"}),
        (Filters(set_params={"a": None}), {"llama", "alias"}),
        (Filters(set_params={"model": "x", "a..b": 1}), set[str]()),
        (Filters(set_params_by_id={"alias": {"a": 1}, "llama": {}}), {"alias"}),
        (PeerFilters(strip_params="a"), {"llama", "alias"}),
    ],
)
def test_a_body_that_nothing_touches_is_known_beforehand(filters: Filters | PeerFilters, touched: set[str]):
    edits = compile_edits(filters)
    assert {name for name in ("llama", "alias") if edits.touches(name)} == touched
    for name in {"llama", "alias"} - touched:
        assert edits.apply(CHAT, name) is CHAT


NAMES = st.sampled_from(["a", "b", "c", "model", "a.b", "a.0", "b.c.d", r"a\.b", "m*", "..", "x y"])
SETS = st.dictionaries(NAMES, st.none() | st.integers() | st.text() | st.lists(st.integers()), max_size=4)
BODIES = st.dictionaries(
    st.sampled_from("abcdm"),
    st.integers() | st.lists(st.integers()) | st.dictionaries(st.sampled_from("bcd"), st.text()),
)


@given(BODIES, st.lists(NAMES, max_size=4), SETS, SETS, st.sampled_from(["", "real"]))
def test_all_at_once_is_the_same_as_each_edit_alone(
    body: dict[str, object], strips: list[str], params: dict[str, Json], by_id: dict[str, Json], use_model_name: str
):
    raw = json.dumps({"model": "llama"} | body).encode()
    step = set_path(raw, "model", json.dumps(use_model_name).encode()) if use_model_name else raw
    for path in stripped_paths(",".join(strips)):
        step = delete_path(step, path)
    for values in (params, by_id):
        for path in sorted(values):
            if not is_protected(path):
                step = set_path(
                    step, path, json.dumps(values[path], separators=(",", ":"), ensure_ascii=False).encode()
                )
    filters = Filters(strip_params=",".join(strips), set_params=params, set_params_by_id={"llama": by_id})
    edits = compile_edits(filters, use_model_name)
    assert json.loads(edits.apply(raw, "llama")) == json.loads(step)
    assert json.loads(step)["model"] == (use_model_name or "llama")
    if not edits.touches("llama"):
        assert step == raw


def test_a_large_body_is_filtered_in_milliseconds():
    """A small one is timed in test_speed.py."""
    edits = compile_edits(Filters(strip_params="temperature, top_p", set_params={"top_k": 40, "a.b": False}), "real")
    turn = {"role": "user", "content": 'Lorem ipsum dolor sit amet, "consetetur" sadipscing\n' * 4}
    body = json.dumps({"model": "llama", "messages": [turn] * 4000, "temperature": 0.7}).encode()
    assert timed(lambda: edits.apply(body, "llama"), rounds=20).median < 15_000


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
FIELDS = st.sampled_from(["model", "file", "stream", "Model"])


@st.composite
def parts(draw: st.DrawFn, end: bytes) -> tuple[bytes, bytes]:
    """A part's head with its blank line, and its content."""
    name = draw(FIELDS)
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


PAIRS = b"model=a|b=%20c|b=1||mod%65l=c|model|models=1|=model|b|m+odel=1".split(b"|")


@given(st.lists(st.tuples(st.sampled_from(["model", "a b", "é"]), st.text(max_size=5))), st.text(max_size=8))
def test_a_reader_of_a_url_encoded_body_finds_the_new_value(pairs: list[tuple[str, str]], value: str):
    result = rewrite_urlencoded(urlencode(pairs).encode(), "model", value)
    expected = [(key, value if key == "model" else old) for key, old in pairs]
    if not any(key == "model" for key, _ in pairs):
        expected.append(("model", value))
    assert parse_qsl(result.decode(), keep_blank_values=True) == expected


def others(body: bytes) -> list[bytes]:
    """The pairs that do not name the model."""
    return [pair for pair in body.split(b"&") if unquote_plus(pair.partition(b"=")[0].decode("latin-1")) != "model"]


@given(st.binary(max_size=60) | st.lists(st.sampled_from(PAIRS)).map(b"&".join))
def test_of_any_url_encoded_body_the_value_alone_is_another(body: bytes):
    result = rewrite_urlencoded(body, "model", "x/y z")
    assert set(parse_qs(result.decode("latin-1"), keep_blank_values=True)["model"]) == {"x/y z"}
    assert result.count(b"&") == body.count(b"&") + (others(body) == body.split(b"&") != [b""])
    assert others(result) == others(body) or not body
