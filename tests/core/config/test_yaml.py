"""Text to nodes: the dialect by tables, JSON by a law, environment macros, and mistakes by their places and words."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from time import thread_time

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain, told, walk

from appliance.core.config.nodes import MappingNode, ScalarNode, SequenceNode
from appliance.core.config.yaml import MAX_DEPTH, MAX_NODES, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=30)
DOCUMENT = st.dictionaries(TEXT, json_values(TEXT, text=TEXT, leaves=20), min_size=1, max_size=5)
LAYOUT = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"separators": (" ,\t", "\t: ")}]
)


@given(DOCUMENT, LAYOUT)
def test_json_means_what_it_means_to_a_json_parser(document: dict[str, object], layout: dict[str, object]) -> None:
    text = json.dumps(document, **layout)
    root, problems = parse(text, "c.json")
    assert plain(root) == json.loads(text)
    assert [problem for problem in problems if problem.level == "error"] == []


@given(DOCUMENT, LAYOUT)
def test_every_place_is_where_the_text_is(document: dict[str, object], layout: dict[str, object]) -> None:
    text = json.dumps(document, **layout)
    lines = text.split("\n")
    for node in walk(mapping(text)):
        rest = lines[node.at.line - 1][node.at.column - 1 :]
        match node:
            case MappingNode():
                assert rest.startswith("{")
            case SequenceNode():
                assert rest.startswith("[")
            case ScalarNode():
                assert rest.startswith('"' if node.quoted else node.text)


@given(st.text(" \t\n\r-:[]{}#&*!|>'\"%@`,?ab01~<\\.\x85\x01\ufeff=_u", max_size=40))
def test_any_text_gives_nodes_or_problems_inside_of_it(text: str) -> None:
    root, problems = parse(text, "c.yaml")
    lines = re.split("\r\n|\n|\r", text)
    for at in [problem.at for problem in problems] + ([node.at for node in walk(root)] if root else []):
        assert 1 <= at.line <= len(lines)
        assert 1 <= at.column <= len(lines[at.line - 1]) + 1
    assert root is None or isinstance(root, MappingNode)


SCALARS: list[tuple[str, object]] = [
    *[(word, word) for word in ("on", "off", "yes", "no", "y", "N", "On", "TRUe", "nil", "None", "Infinity", "nan")],
    *[(word, word) for word in ("_1", "._5", "1e", "1e999", "0x", "0xg", "0x1ffffffffffffffff", "0x" + "f" * 5000)],
    *[(word, word) for word in ("12:30:45", "2026-08-22", "9" * 5000)],
    *[(word, True) for word in ("true", "True", "TRUE")],
    *[(word, False) for word in ("false", "False", "FALSE")],
    *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
    ("0", 0),
    ("-7", -7),
    ("+7", 7),
    ("0777", 511),
    ("0o17", 15),
    ("0O17", 15),
    ("-0o17", -15),
    ("0x1F", 31),
    ("-0X1f", -31),
    ("0b101", 5),
    ("1_000", 1000),
    ("0x_ff", 255),
    ("9223372036854775807", 2**63 - 1),
    ("-9223372036854775808", -(2**63)),
    ("18446744073709551615", 2**64 - 1),
    ("18446744073709551616", 2.0**64),
    ("-9223372036854775809", -(2.0**63)),
    ("08", 8.0),
    ("1e3", 1000.0),
    ("1.5", 1.5),
    ("-.5", -0.5),
    (".5", 0.5),
    ("1.", 1.0),
    ("1_0.5", 10.5),
    ("1E-3", 0.001),
    (".inf", math.inf),
    ("+.Inf", math.inf),
    ("-.INF", -math.inf),
    ("!!str 5", "5"),
    ("!!str", ""),
    ("! 5", "5"),
    ("!!int '5'", 5),
    ("!!float 5", 5.0),
    ("!!bool 'true'", True),
    ("-" + "9" * 300, -1e300),
    ("0" * 5000 + "7", 7),
    ("0x" + "0" * 5000 + "f", 15),
    ("!!null ''", None),
    ("!!timestamp 2026-08-22", "2026-08-22"),
    ("!!binary aGVsbG8=", "hello"),
    ("'5'", "5"),
    ('"true"', "true"),
    ('"\\u00e9\\/\\ud83d\\ude00"', "é/😀"),
    ('"\\uD83d\\uDE00\\\\ud83d\\\\ude00"', "😀\\ud83d\\ude00"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_dialect(text: str, value: object) -> None:
    read = plain(mapping(f"k: {text}\n"))
    assert read == {"k": value}
    assert type(read["k"]) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(mapping("k: .nan").get("k").value)


def test_text_and_quotes_are_remembered() -> None:
    root = mapping("a: 0777\nb: '5'\nc: |\n  7\nd: word\n")
    scalars = [entry.value for entry in root.entries]
    assert all(isinstance(scalar, ScalarNode) for scalar in scalars)
    assert [(s.text, s.quoted) for s in scalars if isinstance(s, ScalarNode)] == [
        ("0777", False),
        ("5", True),
        ("7\n", True),
        ("word", False),
    ]


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "--- # x\n...\n", "~", "null\n", "\ufeff"])
def test_nothing_is_no_root_and_no_problem(text: str) -> None:
    assert parse(text, "c.yaml") == (None, [])


@pytest.mark.parametrize("text", ["a: 1\nb:\n  c: 2\n", "a:\t1 \t# x\nb:\n  c: 2", '{\n\t"a": 1,\n\t"b":\t{"c": 2}\n}'])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_tabs_line_ends_and_byte_order_mark(text: str, start: str, end: str) -> None:
    root = mapping(start + text.replace("\n", end))
    assert plain(root) == {"a": 1, "b": {"c": 2}}
    assert (root.at.line, root.at.column) == (1, 1)


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_odd_line_ends_are_yaml_s_and_not_the_editor_s(end: str) -> None:
    root = mapping(f"a: 1{end}b: 2\nc: 3")
    assert plain(root) == {"a": 1, "b": 2, "c": 3}
    assert [(entry.key.at.line, entry.key.at.column) for entry in root.entries] == [(1, 1), (1, 6), (2, 1)]


def test_without_libyaml_the_error_names_what_is_missing() -> None:
    code = "import sys; sys.modules['yaml._yaml'] = None; import appliance.core.config.libyaml"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: PyYAML is here without libyaml (yaml.CParser is missing)" in done.stderr


def test_block_text_has_plain_line_ends() -> None:
    assert plain(mapping("cmd: |\r\n  a\r\n  b\r\n")) == {"cmd": "a\nb\n"}


def test_aliases_and_merges_are_written_out() -> None:
    root = mapping(
        "base: &base {ttl: 1, cmd: x, name: n}\n"
        "more: &more {ttl: 2, env: []}\n"
        "a: {first: 0, <<: *base, ttl: 5}\n"
        "b: {<<: [*base, *more], last: 1}\n"
        "c: *base\n"
        "d: {'<<': 1}\n"
    )
    values = plain(root)
    assert values["a"] == {"first": 0, "cmd": "x", "name": "n", "ttl": 5}
    assert list(values["a"]) == ["first", "cmd", "name", "ttl"]
    assert values["b"] == {"ttl": 1, "cmd": "x", "name": "n", "env": [], "last": 1}
    assert values["c"] == {"ttl": 1, "cmd": "x", "name": "n"}
    assert values["d"] == {"<<": 1}
    merged = root.get("b").entries[0].key.at
    assert (merged.line, merged.column) == (1, 14)


def test_an_anchor_can_be_set_again() -> None:
    assert plain(mapping("a: &x 1\nb: *x\nc: &x 2\nd: *x\n")) == {"a": 1, "b": 1, "c": 2, "d": 2}


MISTAKES = [
    ("a:\n\tb: 1\n", "2:1 error a", "use spaces"),
    ("a: @x\n", "1:4 error a", "begin with @"),
    ("a: `x\n", "1:4 error a", "quotes"),
    ("a: %x\n", "1:4 error a", "begin with %"),
    ('a: "\\q"\n', "1:5 error a", "\\\\q"),
    ('a: "\\x1"\n', "1:7 error a", "2 hexadecimal"),
    ('ok: 1\na: "open\nb: 1\n', "2:4 error a", "never closed"),
    ("a: b: c\n", "1:5 error", "quotes"),
    ("a: 1\n  b: 2\n", "2:4 error", "indented"),
    ("a:\n  b: 1\n c: 2\n", "3:2 error", "indentation"),
    ("a: [b, c\nd: 1\n", "2:2 error a", "']'"),
    ("a: {b: 1]\n", "1:9 error a", "'}'"),
    ("a: 1\nkey\nb: 2\n", "3:1 error", "without ':' (from line 2 on)"),
    ("- a\nb: 1\n", "2:1 error", "key is not expected"),
    ("a: >x\n  b\n", "1:5 error a", "quotes"),
    ("a: - b\n", "1:4 error a", "lines of their own"),
    ("a: & x\n", "1:5 error a", "anchor"),
    ("a: 'x' y\n", "1:8 error", "inside of it"),
    ("a: \x01\n", "1:4 error", "U+0001"),
    ("%YAML 3.0\n---\na: 1\n", "1:1 error", "this is not YAML: found incompatible YAML document"),
    ("a: 1\nb: 2\n---\nc: 3\n", "3:1 error", "second document"),
    ("a: 1\nb: {a: 1, a: 2}\n", "2:11 error b.a", "line 2, column 5"),
    ("a: 1\nb: 2\n'a': 3\n", "3:1 error a", "already on line 1"),
    ("1: 1\n'1': 2\n", "2:1 error 1", "already on line 1"),
    ("~: 1\n", "1:1 error", "missing"),
    ("a: {: 1}\n", "1:5 error a", "missing"),
    ("[a]: 1\n", "1:1 error", "cannot be a key"),
    ("{a: b}: 1\n", "1:1 error", "cannot be a key"),
    ("a: *gone\n", "1:4 error a", "anchor"),
    ("a: &a [1, *a]\n", "1:11 error a[1]", "contain itself"),
    ("a: {<<: 5}\n", "1:9 error a", "'<<' needs"),
    ("a: {<<: {b: 1}, <<: {c: 1}}\n", "1:17 error a", "second '<<'"),
    ("a: !!int x\n", "1:4 error a", "!!int"),
    ("a: !!bool yes\n", "1:4 error a", "!!bool"),
    ("a: !!binary '#'\n", "1:4 error a", "base64"),
    ("a: !mine 5\n", "1:4 warning a", "tag"),
    ("a: !mine {b: 1}\n", "1:4 warning a", "tag"),
    ('a: "\\ud83d"\n', "1:7 error a", "not a character"),
    ('a: "\\UFFFFFFFF"\n', "1:7 error a", "not a character"),
    ("just text\n", "1:1 error", "a single value"),
    ("- 1\n", "1:1 error", "a list"),
    ("models:\n  7: {}\n", "2:3 warning models", "'7'"),
    ("models:\n  m:\n    metadata: {true: 1}\n", "3:16 warning models.m.metadata", "'true'"),
]


@pytest.mark.parametrize(("text", "where", "words"), MISTAKES)
def test_mistake_is_told_with_its_place(text: str, where: str, words: str) -> None:
    problems = parse(text, "c.yaml")[1]
    assert told(problems) == [where]
    assert words in problems[0].message
    assert "c.yaml" not in problems[0].message


def test_what_is_right_beside_a_mistake_is_kept() -> None:
    root, problems = parse("a: 1\na: 2\nmodels:\n  7: {x: 1}\n  m: *gone\n? [k]\n: v\n", "c.yaml")
    assert plain(root) == {"a": 1, "models": {"7": {"x": 1}, "m": None}}
    assert len(problems) == 4


def test_number_keys_outside_of_models_are_text_without_a_word() -> None:
    assert plain(mapping("x: {1: a, 0x10: b, true: c}")) == {"x": {"1": "a", "0x10": "b", "true": "c"}}


def test_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    begin = thread_time()
    root, problems = parse("\n".join(lines), "c.yaml")
    assert thread_time() - begin < 1
    assert root is None
    assert str(MAX_NODES) in problems[-1].message


def test_aliases_in_aliases_are_deep() -> None:
    """Later stages walk down all levels, and Python's stack ends at some hundreds."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2 * MAX_DEPTH))]
    assert "deep" in parse("\n".join(lines), "c.yaml")[1][-1].message
    assert parse("\n".join(lines[: MAX_DEPTH - 1]), "c.yaml")[1] == []


def test_merge_bomb_is_refused_quickly() -> None:
    base = "base: &b {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}\n"
    text = base + "".join(f"m{n}: {{<<: *b}}\n" for n in range(1000))
    assert "values" in parse(text, "c.yaml")[1][-1].message


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_refused(opening: str) -> None:
    text = "k: " + opening * (20 * MAX_DEPTH)
    began = thread_time()
    root, problems = parse(text, "c.yaml")
    assert thread_time() - began < 0.2, "the time must not grow with the square of the depth"
    assert root is None
    assert "deep" in problems[-1].message


ENV = {
    "HOME": "/home/me",
    "N": "42",
    "YES": "true",
    "EMPTY": "",
    "SPACES": "a  b",
    "WINDOWS": r"C:\models\new",
    "COLON": "a: b",
    "HASH": "a #b",
    "LIST": "[a, b]",
    "COMMA": "a, b",
    "QUOTED": '"x"',
    "LINES": "a\nb",
    "NUL": "a\0b",
    "BAD": "a\udcffb",
    "INDENTED": "  x",
    "SPACED_KEY": "  k ",
    "OTHER": "${env.N}",
    "_a1": "odd name",
}

ENV_VALUES = [
    ("k: ${env.HOME}/models", "/home/me/models"),
    ("k: ${env.N}", 42),
    ("k: '${env.N}'", "42"),
    ('k: "${env.N}"', "42"),
    ("k: ${env.N}${env.N}", 4242),
    ("k: ${env.YES}", True),
    ("k: ${env.EMPTY}", None),
    ("k: '${env.EMPTY}'", ""),
    ("k: [${env.EMPTY}]", [None]),
    ("k: [${env.COMMA}, {a: ${env.COLON}}]", ["a, b", {"a": "a: b"}]),
    ("k: ${env.HASH}${env.LIST}", "a #b[a, b]"),
    ("k: ${env.QUOTED}", '"x"'),
    ("k: ${env.INDENTED}", "x"),
    ("k: {${env.HOME}: ${env.N}}", {"/home/me": 42}),
    ("k:\n- ${env.N}\n- ${env.HOME}", [42, "/home/me"]),
    ("k: ${env.SPACES}", "a  b"),
    ("k: ${env._a1}", "odd name"),
    ("k: ${env.WINDOWS}", r"C:\models\new"),
    ("k: |-\n  ${env.COLON}\n  ${env.HASH}", "a: b\na #b"),
    ("k: ${env.OTHER} ${env.N}", "${env.N} 42"),
    ("k: |-\n  ${env.INDENTED}\n  y", "  x\ny"),
    ("k: one\n  ${env.HOME}\n  two", "one /home/me two"),
    ("k: \u3400${env.N}\u3401", "\u340042\u3401"),
    ("${env.SPACED_KEY}: 5", 5),
    ("k: !!str ${env.N}", "42"),
    ("k: &x ${env.N}", 42),
    ("k: ${env.N} # ${env.GONE}", 42),
    ("k: | # ${env.GONE}\n  x", "x"),
    ("# ${env.GONE}\nk: 1\n  # ${env.GONE}", 1),
    ("k: |\n  x\n# ${env.GONE}\n", "x\n"),
    ("k: $env.N $${env.N}", "$env.N $42"),
    ('"${env.EMPTY}k": ${env.HOME}', "/home/me"),
]


@pytest.mark.parametrize(("text", "value"), ENV_VALUES)
def test_value(text: str, value: object) -> None:
    root, problems = parse(text, "c.yaml", ENV)
    assert problems == []
    assert plain(root) == {"k": value}


WRONG_VARIABLES = [
    ("k: ${env.GONE}", ["1:4 error k"], "GONE is not set"),
    ("unknown:\n  x: [1, 'a ${env.GONE}']", ["2:13 error unknown.x[1]"], "GONE is not set"),
    ("${env.GONE}: 1", ["1:1 error"], "GONE is not set"),
    ("k: |\n  # ${env.GONE}\n  x", ["2:5 error k"], "GONE is not set"),
    ("k: '${env.GONE}'\nj: ${env.GONE}\ni: ${env.ALSO}", ["1:5 error k", "3:4 error i"], "GONE is not set"),
    ("a: [${env.GONE}, 1]\nb: '${env.GONE}'\na: 2\n", ["1:5 error a[0]", "3:1 error a"], "GONE is not set"),
    ("k: '${env.LINES}'", ["1:5 error k"], "line break"),
    ("k: '${env.NUL}'", ["1:5 error k"], "NUL"),
    ('k: "${env.BAD}"', ["1:5 error k"], "UTF-8"),
    ("k: ${env.1X}", ["1:4 warning k"], "not an environment macro"),
    ("k: ${env.} ${env.A-B}", ["1:4 warning k", "1:12 warning k"], "not an environment macro"),
    ("\ufeffk: ${env.GONE}", ["1:4 error k"], "GONE"),
    ("a: 1\r\nk: ${env.GONE}", ["2:4 error k"], "GONE"),
]


@pytest.mark.parametrize(("text", "where", "words"), WRONG_VARIABLES)
def test_mistake_in_a_variable_is_told_with_its_place(text: str, where: list[str], words: str) -> None:
    problems = parse(text, "c.yaml", ENV)[1]
    assert told(problems) == where
    assert words in problems[0].message


ENV_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=12)


@given(
    ENV_TEXT, st.sampled_from(['k: "x{}"', "k: 'x{}'", "k: |-\n  x{}", "k: x{}", "k: [x{}]", "k: {{a: x{}}}", "x{}: k"])
)
def test_a_value_is_part_of_one_text_whatever_it_consists_of(value: str, form: str) -> None:
    root, problems = parse(form.format("${env.V}") + "\nafter: 1\n", "c.yaml", {"V": value})
    text = f"x{value}".rstrip(" \t") if form[3] in "x[{" or form[0] == "x" else f"x{value}"
    expected = {"k: [x{}]": {"k": [text]}, "k: {{a: x{}}}": {"k": {"a": text}}, "x{}: k": {text: "k"}}
    assert problems == []
    assert plain(root) == {**expected.get(form, {"k": text}), "after": 1}
