"""Edits of JSON text: what they mean, held against the same edits of Python objects, and what they leave alone."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from one_edit import delete_path, set_path

from appliance.core.bodies.json_text import MAX_DEPTH, MAX_INDEX, JsonEdit, apply_edits, check_path, parse_path

LETTERS = 'ab.:\\*?#|@"é-10 \n😀'
KEYS = st.sampled_from(["a", "b", "a.b", "0", "1", "-1", "model", "temperature", ":1", "é"]) | st.text(
    LETTERS, max_size=3
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=15
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=6)
SPACE = st.text(" \t\r\n", max_size=2)
VALUES = JSON.map(lambda value: json.dumps(value).encode())


def written(draw: st.DrawFn, value: object) -> str:
    """JSON text of a value, with spacing, escapes and numbers as somebody might write them."""

    def pad(text: str) -> str:
        return draw(SPACE) + text + draw(SPACE)

    match value:
        case str():
            return json.dumps(value, ensure_ascii=draw(st.booleans()))
        case float():
            return draw(st.sampled_from([repr(value), f"{value:.17e}", f"{value:.17E}"]))
        case list():
            return f"[{','.join(pad(written(draw, item)) for item in value) or draw(SPACE)}]"
        case dict():
            members = [pad(spelled(draw, key)) + ":" + pad(written(draw, item)) for key, item in value.items()]
            return f"{{{','.join(members) or draw(SPACE)}}}"
        case _:
            return json.dumps(value)


def spelled(draw: st.DrawFn, key: str) -> str:
    """A key as it may stand in a text: any letter may be escaped."""
    if draw(st.booleans()):
        return json.dumps(key, ensure_ascii=False)
    return '"' + "".join(f"\\u{unit:04x}" for unit in utf16(key)) + '"'


def utf16(key: str) -> list[int]:
    raw = key.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


@st.composite
def texts(draw: st.DrawFn, values: st.SearchStrategy[object] = OBJECTS) -> tuple[bytes, object]:
    """A JSON text, and what it says."""
    value = draw(values)
    return (draw(SPACE) + written(draw, value) + draw(SPACE)).encode(), value


Part = tuple[str, bool]
"""The name of a part, and whether it is marked as a key."""
PARTS = st.lists(st.tuples(KEYS.filter(bool), st.booleans()), min_size=1, max_size=4)


def dotted(parts: list[Part]) -> str:
    """The path as a configuration writes it: everything with a meaning escaped."""
    return ".".join((":" if key else "") + "".join(f"\\{c}" if c in ".\\*?#|@:" else c for c in n) for n, key in parts)


def index_of(part: Part) -> int | None:
    name, key = part
    if key:
        return None
    return -1 if name == "-1" else int(name) if name.isascii() and name.isdigit() else None


def built(parts: list[Part], value: object) -> object:
    if not parts:
        return value
    index = index_of(parts[0])
    if index is None:
        return {parts[0][0]: built(parts[1:], value)}
    return [*[None] * max(index, 0), built(parts[1:], value)]


def expected_set(node: object, parts: list[Part], value: object) -> object:
    """The rules of setting, on Python objects."""
    if not parts:
        return value
    name, index = parts[0][0], index_of(parts[0])
    if isinstance(node, dict):
        node[name] = expected_set(node[name], parts[1:], value) if name in node else built(parts[1:], value)
    elif isinstance(node, list):
        if index is not None and 0 <= index < len(node):
            node[index] = expected_set(node[index], parts[1:], value)
        elif index is not None:
            node.extend([None] * (index - len(node)))
            node.append(built(parts[1:], value))
    else:
        return built(parts, value)
    return node


def expected_delete(node: object, parts: list[Part]) -> object:
    name, index = parts[0][0], index_of(parts[0])
    if isinstance(node, dict) and name in node:
        place: str | int = name
    elif isinstance(node, list) and index is not None and index < len(node) > 0:
        place = index
    else:
        return node
    if len(parts) == 1:
        del node[place]
    else:
        node[place] = expected_delete(node[place], parts[1:])
    return node


def same(left: object, right: object) -> bool:
    """Equal with types, order of keys included."""
    return json.dumps(left) == json.dumps(right)


def shared_ends(left: bytes, right: bytes) -> int:
    """How many bytes at both ends together are the same, each counted once."""
    prefix = common_prefix(left, right)
    return prefix + common_prefix(left[prefix:][::-1], right[prefix:][::-1])


def common_prefix(left: bytes, right: bytes) -> int:
    shortest = min(len(left), len(right))
    return next((at for at in range(shortest) if left[at] != right[at]), shortest)


@given(texts(OBJECTS | JSON), PARTS, VALUES)
def test_setting_means_the_same_as_on_objects(text: tuple[bytes, object], parts: list[Part], value: bytes):
    raw, said = text
    assert check_path(dotted(parts)) is None
    result = set_path(raw, dotted(parts), value)
    assert same(json.loads(result), expected_set(copy.deepcopy(said), parts, json.loads(value)))


@given(texts(OBJECTS | JSON), PARTS)
def test_deleting_means_the_same_as_on_objects(text: tuple[bytes, object], parts: list[Part]):
    raw, said = text
    result = delete_path(raw, dotted(parts))
    assert same(json.loads(result), expected_delete(copy.deepcopy(said), parts))


@given(st.data(), texts(OBJECTS.filter(bool)), VALUES)
def test_a_path_into_what_is_there_replaces_exactly_that(data: st.DataObject, text: tuple[bytes, object], value: bytes):
    raw, said = text
    parts: list[Part] = []
    node = said
    while isinstance(node, dict | list) and node and (not parts or data.draw(st.booleans())):
        if isinstance(node, dict):
            key = data.draw(st.sampled_from(sorted(node)))
            assume(key)
            parts.append((key, data.draw(st.booleans())))
            node = node[key]
        else:
            at = data.draw(st.integers(0, len(node) - 1))
            parts.append((str(at), False))
            node = node[at]
    result = set_path(raw, dotted(parts), value)
    went = len(raw) - len(result) + len(value)
    assert any(
        result == raw[:at] + value + raw[at + went :] and says(raw[at : at + went], node) for at in range(len(raw))
    )
    assert set_path(result, dotted(parts), value) == result


def says(text: bytes, value: object) -> bool:
    """Whether the text is the value, without space around it."""
    try:
        return same(json.loads(text), value) and text == text.strip()
    except ValueError:
        return False


@given(texts(), KEYS.filter(bool), VALUES)
def test_a_new_key_is_one_insertion_at_the_end(text: tuple[bytes, object], key: str, value: bytes):
    raw, said = text
    assert isinstance(said, dict)
    assume(key not in said)
    result = set_path(raw, dotted([(key, True)]), value)
    added = (b"," if said else b"") + json.dumps(key, ensure_ascii=False).encode() + b":" + value
    assert len(result) == len(raw) + len(added)
    assert added in result
    assert shared_ends(raw, result) == len(raw)
    assert list(json.loads(result))[-1] == key


@given(st.data(), texts(OBJECTS.filter(bool)))
def test_deleting_takes_out_one_piece_and_no_other_member(data: st.DataObject, text: tuple[bytes, object]):
    raw, said = text
    assert isinstance(said, dict)
    key = data.draw(st.sampled_from(sorted(said)))
    assume(key)
    result = delete_path(raw, dotted([(key, True)]))
    assert shared_ends(raw, result) == len(result)
    members = msgspec.json.Decoder(dict[str, msgspec.Raw])
    before, after = members.decode(raw), members.decode(result)
    assert [(name, bytes(value)) for name, value in before.items() if name != key] == [
        (name, bytes(value)) for name, value in after.items()
    ]
    assert delete_path(result, dotted([(key, True)])) == result


@given(texts(OBJECTS | JSON), st.lists(st.tuples(PARTS, st.none() | VALUES), max_size=6))
def test_edits_together_are_edits_one_after_the_other(
    text: tuple[bytes, object], wanted: list[tuple[list[Part], bytes | None]]
):
    raw, _ = text
    edits: list[JsonEdit] = []
    one_by_one = raw
    for parts, value in wanted:
        path = parse_path(dotted(parts))
        assert path is not None
        edits.append(JsonEdit(path, value))
        one_by_one = apply_edits(one_by_one, edits[-1:])
    assert apply_edits(raw, edits) == one_by_one
    assert apply_edits(raw, ()) == raw


PATHS = PARTS.map(dotted) | st.text(LETTERS, max_size=8)


@given(st.binary(max_size=60) | st.text('{}[]":,\\1a \n', max_size=30).map(str.encode), PATHS, VALUES)
@example(b'{"a":1', "a", b"2")
@example(b'{"a":1 "b":2}', "a", b"2")
@example(b'{"a":1]', "a", b"2")
@example(b'{"a":1}x', "a", b"2")
@example(b'{"\xff":1,"a":2}', "a", b"3")
@example(b"[" * 100_000, "0.0", b"3")
@example(b'{"a":' * 100_000, "a.a", b"3")
def test_garbage_changes_or_not_but_never_raises(garbage: bytes, path: str, value: bytes):
    deleted = delete_path(garbage, path)
    changed = set_path(garbage, path, value)
    check_path(path)
    try:
        said = json.loads(garbage)
    except (ValueError, RecursionError):
        if garbage.lstrip(b" \t\r\n")[:1] in (b"{", b"["):
            # what only looks like a container is for its reader to refuse: nothing is made up from it
            assert len(deleted) <= len(garbage)
        else:
            assert deleted == garbage
            assert changed == garbage or json.loads(changed) is not None
    else:
        assert isinstance(json.loads(deleted), type(said))
        json.loads(changed)


@pytest.mark.parametrize(
    "text",
    ['{"a":1 "b":2}', '{"a":1]', '{,"a":1}', '{"a":1,}', '{"a":1}}', '{"a"}', "{a:1}", '{"a":}', "[1 2]", "[1,]"],
)
def test_what_is_no_json_but_looks_like_it_stays(text: str):
    for path in ("a", "b", "0", "c"):
        assert set_path(text.encode(), path, b"3").decode() == text
        assert delete_path(text.encode(), path).decode() == text


@given(texts(), st.data(), PARTS, VALUES)
def test_a_text_cut_short_stays_as_it_is(
    text: tuple[bytes, object], data: st.DataObject, parts: list[Part], value: bytes
):
    whole = text[0].strip()
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    assert set_path(cut, dotted(parts), value) == cut
    assert delete_path(cut, dotted(parts)) == cut


DEEP = ".".join(["a"] * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("text", "path", "value", "result"),
    [
        ('{"a":[ 1 ]}', "a.3", "9", '{"a":[ 1,null,null,9 ]}'),
        ('{"a":NaN,"b":1}', "b", "9", '{"a":NaN,"b":9}'),
        # the lengths of the last values of its keys lead through this text, too, but past some of its members
        (
            '{":":":,","b":111111111111,":":{":":1}   ,":,":12,",":":"}',
            "b",
            "9",
            '{":":":,","b":9,":":{":":1}   ,":,":12,",":":"}',
        ),
        ('{"a":1,"a":2}', "a", "9", '{"a":9,"a":2}'),
        ('{"a":12,"b":0,"a":1}', "b", "9", '{"a":12,"b":9,"a":1}'),
        ("", "a", "1", '{"a":1}'),
        ("hello", "a.b", "1", '{"a":{"b":1}}'),
        ('{"temp*":1}', "temp*", "2", '{"temp*":2}'),
        *[("{}", path, "2", "{}") for path in ("a.*", "a..b", "", f"a.{MAX_INDEX + 1}", "a." + "9" * 5000, DEEP)],
        ('{"":1}', "", "2", '{"":1}'),
        ('{"n":' + "1" * 5000 + ',"n":1,"b":1}', "b", "2", '{"n":' + "1" * 5000 + ',"n":1,"b":2}'),
    ],
)
def test_set(text: str, path: str, value: str, result: str):
    assert set_path(text.encode(), path, value.encode()).decode() == result


@pytest.mark.parametrize(
    ("text", "path", "result"),
    [
        ('{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}', "a", '{\n  "b": 2,\n  "c": 3\n}'),
        ('{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}', "c", '{\n  "a": 1,\n  "b": 2\n}'),
        ('{ "a" : 1 }', "a", "{ }"),
        ('{"a":1,"a":2}', "a", '{"a":2}'),
        ('{"*":1}', "*", '{"*":1}'),
        ('{"*":1}', r"\*", "{}"),
        ("hello", "a", "hello"),
    ],
)
def test_delete(text: str, path: str, result: str):
    assert delete_path(text.encode(), path).decode() == result


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["temp*", "a.b?", "messages.#", "a|b", "@this"], "pattern"),
        (["", "a..b", "a.", ":"], "empty part"),
        ([f"a.{MAX_INDEX + 1}"], "index above"),
        ([DEEP], "33 parts"),
        (["\ud800"], "surrogate"),
    ],
)
def test_a_path_that_does_nothing_is_told_why(paths: list[str], words: str):
    for path in paths:
        problem = check_path(path)
        assert problem is not None
        assert words in problem
