"""Environment macros: whose names are required, and what a value becomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import plain, told

from appliance.core.config.yaml import parse

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

VALUES = [
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


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_value(text: str, value: object) -> None:
    root, problems = parse(text, "c.yaml", ENV)
    assert problems == []
    assert plain(root) == {"k": value}


WRONG = [
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


@pytest.mark.parametrize(("text", "where", "words"), WRONG)
def test_mistake_is_told_with_its_place(text: str, where: list[str], words: str) -> None:
    problems = parse(text, "c.yaml", ENV)[1]
    assert told(problems) == where
    assert words in problems[0].message


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=12)


@given(TEXT, st.sampled_from(['k: "x{}"', "k: 'x{}'", "k: |-\n  x{}", "k: x{}", "k: [x{}]", "k: {{a: x{}}}", "x{}: k"]))
def test_a_value_is_part_of_one_text_whatever_it_consists_of(value: str, form: str) -> None:
    root, problems = parse(form.format("${env.V}") + "\nafter: 1\n", "c.yaml", {"V": value})
    text = f"x{value}".rstrip(" \t") if form[3] in "x[{" or form[0] == "x" else f"x{value}"
    expected = {"k: [x{}]": {"k": [text]}, "k: {{a: x{}}}": {"k": {"a": text}}, "x{}: k": {text: "k"}}
    assert problems == []
    assert plain(root) == {**expected.get(form, {"k": text}), "after": 1}
