"""Environment macros: whose names are required, what a value becomes, and which lines stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from node_values import mapping, plain, told

from appliance.core.config.env import substitute_env
from appliance.core.config.scalars import typed
from appliance.core.config.yaml import parse

ENV = {
    "HOME": "/home/me",
    "N": "42",
    "YES": "true",
    "EMPTY": "",
    "SPACES": "a  b",
    "WINDOWS": r"C:\models\new",
    "QUOTES": 'say "hi"',
    "APOSTROPHE": "it's",
    "COLON": "a: b",
    "HASH": "a #b",
    "LIST": "[a, b]",
    "COMMA": "a, b",
    "STAR": "*x",
    "AT": "@x",
    "QUOTED": '"x"',
    "LINES": "a\nb",
    "RETURN": "a\rb",
    "NUL": "a\0b",
    "ESCAPE": "a\x1bb",
    "NEXT": "a\x85b",
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
    ("k: [${env.EMPTY}]", []),
    ("k: [a, ${env.HOME}, ${env.N}]", ["a", "/home/me", 42]),
    ("k: {a: ${env.HOME}}", {"a": "/home/me"}),
    ("k: {${env.HOME}: ${env.N}}", {"/home/me": 42}),
    ("k:\n- ${env.N}\n- ${env.HOME}", [42, "/home/me"]),
    ("k: ${env.SPACES}", "a  b"),
    ("k: ${env._a1}", "odd name"),
    ("k: ${env.WINDOWS}", r"C:\models\new"),
    ("k: '${env.WINDOWS}'", r"C:\models\new"),
    ('k: "${env.WINDOWS}"', r"C:\models\new"),
    ("k: |-\n  ${env.WINDOWS}", r"C:\models\new"),
    ("k: x ${env.QUOTES}", 'x say "hi"'),
    ('k: "${env.QUOTES}"', 'say "hi"'),
    ("k: '${env.APOSTROPHE}'", "it's"),
    ("k: ${env.APOSTROPHE}", "it's"),
    ('k: "${env.COLON}${env.HASH}${env.LIST}"', "a: ba #b[a, b]"),
    ("k: '${env.COLON}'", "a: b"),
    ("k: |-\n  ${env.COLON}\n  ${env.HASH}", "a: b\na #b"),
    ("k: ${env.COMMA}", "a, b"),
    ("k: x${env.AT}${env.STAR}", "x@x*x"),
    ("k: ${env.OTHER} ${env.N}", "${env.N} 42"),
    ('k: "${env.ESCAPE}${env.NEXT}"', "a\x1bba\x85b"),
    ("k: |-\n  a\n  ${env.INDENTED}", "a\n  x"),
    ("k: one\n  ${env.HOME}\n  two", "one /home/me two"),
    ("${env.SPACED_KEY}: 5", 5),
    ("k: !!str ${env.N}", "42"),
    ("k: &x ${env.N}", 42),
    ("k: ${env.N} # ${env.GONE}", 42),
    ("k: | # ${env.GONE}\n  x", "x"),
    ("# ${env.GONE}\nk: 1\n  # ${env.GONE}", 1),
    ("k: |\n  x\n# ${env.GONE}\n", "x\n"),
    ("k: $env.N $${env.N}", "$env.N $42"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_value(text: str, value: object) -> None:
    written, problems = substitute_env(text, "c.yaml", ENV)
    assert problems == []
    assert plain(mapping(written)) == {"k": value}


def test_keys_are_replaced() -> None:
    written, problems = substitute_env('${env.HOME}: 1\n"${env.QUOTES}": 2\n', "c.yaml", ENV)
    assert problems == []
    assert plain(mapping(written)) == {"/home/me": 1, 'say "hi"': 2}


WRONG = [
    ("k: ${env.GONE}", ["1:4 error"], "GONE is not set"),
    ("unknown:\n  x: [1, '${env.GONE}']", ["2:11 error"], "GONE is not set"),
    ("${env.GONE}: 1", ["1:1 error"], "GONE is not set"),
    ("k: |\n  # ${env.GONE}\n  x", ["2:5 error"], "GONE is not set"),
    ("k: '${env.GONE}'\nj: ${env.GONE}\ni: ${env.ALSO}", ["1:5 error", "3:4 error"], "GONE is not set"),
    ("k: '${env.LINES}'", ["1:5 error"], "line break"),
    ("k: '${env.RETURN}'", ["1:5 error"], "line break"),
    ("k: '${env.NUL}'", ["1:5 error"], "NUL"),
    ('k: "${env.BAD}"', ["1:5 error"], "UTF-8"),
    ("k: ${env.ESCAPE}", ["1:4 error"], "U+001B"),
    ("k: '${env.NEXT}'", ["1:5 error"], "U+0085"),
    ("k: ${env.COLON}", ["1:4 error"], "put quotes"),
    ("${env.COLON}: x", ["1:1 error"], "put quotes"),
    ("k: ${env.HASH}", ["1:4 error"], "put quotes"),
    ("k: x ${env.HASH}", ["1:6 error"], "put quotes"),
    ("k: ${env.LIST}", ["1:4 error"], "put quotes"),
    ("k: [${env.COMMA}]", ["1:5 error"], "put quotes"),
    ("k: {a: ${env.COMMA}}", ["1:8 error"], "put quotes"),
    ("k: ${env.STAR}", ["1:4 error"], "put quotes"),
    ("k: ${env.AT}", ["1:4 error"], "put quotes"),
    ("k: ${env.QUOTED}", ["1:4 error"], "put quotes"),
    ("k: |\n  ${env.INDENTED}\n  y", ["2:3 error"], "begins with a space"),
    ("k: ${env.1X}", ["1:4 warning"], "not an environment macro"),
    ("k: ${env.} ${env.A-B}", ["1:4 warning", "1:12 warning"], "not an environment macro"),
    ("\ufeffk: ${env.GONE}", ["1:4 error"], "GONE"),
    ("a: 1\r\nk: ${env.GONE}", ["2:4 error"], "GONE"),
]


@pytest.mark.parametrize(("text", "where", "words"), WRONG)
def test_mistake_is_told_with_its_place(text: str, where: list[str], words: str) -> None:
    problems = substitute_env(text, "c.yaml", ENV)[1]
    assert told(problems) == where
    assert words in problems[0].message
    assert not any(secret in problems[0].message for secret in ("a: b", "a #b", "[a, b]"))


def test_text_that_is_no_yaml_is_searched_everywhere() -> None:
    written, problems = substitute_env('k: "open ${env.HOME}\n# ${env.GONE}\n', "c.yaml", ENV)
    assert told(problems) == ["2:3 error"]
    assert "/home/me" in written
    assert told(parse(written, "c.yaml")[1]) == ["1:4 error k"]


def test_an_unset_variable_does_not_hide_other_mistakes() -> None:
    written, problems = substitute_env("a: [${env.GONE}, 1]\nb: '${env.GONE}'\na: 2\n", "c.yaml", {})
    assert told(problems) == ["1:5 error"]
    assert told(parse(written, "c.yaml")[1]) == ["3:1 error a"]


LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff"), max_size=12)


@given(st.lists(LINE | st.just("key: '${env.V}'") | st.just("key: ${env.V}"), max_size=8), LINE)
def test_lines_without_a_macro_do_not_change(lines: list[str], value: str) -> None:
    written = substitute_env("\n".join(lines), "c.yaml", {"V": value})[0].split("\n")
    assert len(written) == max(len(lines), 1)
    for before, after in zip(lines, written, strict=False):
        if "${env." not in before:
            assert after == before


@given(LINE, st.sampled_from(['k: "{}"', "k: '{}'", "k: |-\n  x{}", "k: {}", "k: [{}]", "k: x{}", "{}: x"]))
def test_a_value_is_one_text_or_a_problem(value: str, form: str) -> None:
    """Quoted and block text take any value; a bare one is refused when YAML would read something else."""
    written, problems = substitute_env(form.format("${env.V}") + "\nafter: 1\n", "c.yaml", {"V": value})
    assume(form != "{}: x" or (typed(value.strip(" ")) is not None and value.strip(" ") != "<<"))  # no key, and a merge
    if problems:
        assert form in ("k: {}", "k: [{}]", "k: x{}", "{}: x")
        return
    root = mapping(written)
    assert len(root.entries) == 2
    first = root.entries[0]
    if form in ('k: "{}"', "k: '{}'"):
        assert plain(first.value) == value
    if form == "k: |-\n  x{}":
        assert plain(first.value) == f"x{value}"
    if form == "k: x{}":
        assert plain(first.value) == f"x{value}".rstrip(" ")


def test_without_macros_nothing_is_parsed_or_changed() -> None:
    assert substitute_env("k: [[[ # ${HOME}", "c.yaml", {}) == ("k: [[[ # ${HOME}", [])
