"""The INI dialect of presets. What is accepted and refused was tried out on llama-server b11434."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.nodes import Problem
from appliance.features.stand_in.core.preset_file import PresetSection, parse

Shape = dict[str, list[tuple[str, str]]]


def shape(sections: list[PresetSection]) -> Shape:
    return {section.name: [(setting.key, setting.value) for setting in section.settings] for section in sections}


def errors(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in problems if problem.level == "error"]


def warnings(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in problems if problem.level == "warning"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# x\n", {}),
        ("; hi\n# there\n\n   \n[m]\nc = 3 ; end\nngl = 4 # end\n", {"m": [("c", "3"), ("ngl", "4")]}),
        ("[m]\n   ; an indented comment\nc=1\n", {"m": [("c", "1")]}),
        ("c = 7\n[m]\n", {"default": [("c", "7")], "m": []}),
        ("[m] ; about it\nc=1", {"m": [("c", "1")]}),
        ("[ m ]\n", {"m": []}),
        ("[m]\nchat-template =   a  b   \t \n", {"m": [("chat-template", "a  b")]}),
        ("[m]\noverride-kv = a=b=c\n", {"m": [("override-kv", "a=b=c")]}),
        ("[m]\nchat-template = [x]\n", {"m": [("chat-template", "[x]")]}),
        ("[m]\nc =\n", {"m": [("c", "")]}),
        ("[m]\nc = ;x\n", {"m": [("c", "")]}),
        ("[m]\nc\t=\t4\n", {"m": [("c", "4")]}),
        ("[m]\r\nc = 4\r\n", {"m": [("c", "4")]}),
        ("[m]\rc = 4", {"m": [("c", "4")]}),
        ("\ufeff[m]\nc = 4\n", {"m": [("c", "4")]}),
        ("[m]\nc = 1\nc = 2\n", {"m": [("c", "1"), ("c", "2")]}),
    ],
)
def test_what_is_accepted(text: str, expected: Shape) -> None:
    sections, problems = parse(text, "p.ini")
    assert problems == []
    assert shape(sections) == expected


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("  c=1", "p.ini:2:3", "indented"),
        ("  [n]", "p.ini:2:3", "indented"),
        ("[n] junk", "p.ini:2:1", "behind the section's ']'"),
        ("[n", "p.ini:2:1", "']' is missing"),
        ("[]", "p.ini:2:1", "no name"),
        ("jinja", "p.ini:2:1", "a flag without a value is written key = true"),
        ("c : 3", "p.ini:2:1", "neither [section] nor key = value"),
        ("ctx size = 3", "p.ini:2:1", "'ctx size' cannot be a key"),
        ("1c = 3", "p.ini:2:1", "'1c' cannot be a key"),
        ("= 3", "p.ini:2:1", "'' cannot be a key"),
        ("c = 1\0", "p.ini:2:1", "NUL"),
    ],
)
def test_a_line_that_llama_server_refuses(line: str, place: str, message: str) -> None:
    (error,) = errors(parse(f"[m]\n{line}\nb = 5\n", "p.ini")[1])
    assert error.startswith(f"{place}: error: ")
    assert message in error


def test_all_mistakes_are_told_in_the_order_of_the_file() -> None:
    _, problems = parse("junk\n[a]\nc=1\n [b]\n[a]\n[\n", "p.ini")
    assert [problem.at.line for problem in problems if problem.at] == [1, 4, 5, 6]


def test_a_repeated_section_discards_the_earlier_one() -> None:
    sections, problems = parse("[m]\nc=1\n[n]\n[m]\nngl=2\n", "p.ini")
    assert shape(sections) == {"n": [], "m": [("ngl", "2")]}
    (warning,) = warnings(problems)
    assert warning.startswith("p.ini:4:1: warning: this [m] discards the one in line 1")


def test_a_section_called_default_discards_what_stands_in_front() -> None:
    assert shape(parse("c=1\n[default]\nm=/x\n", "p.ini")[0]) == {"default": [("m", "/x")]}


@pytest.mark.parametrize(
    ("line", "value", "message"),
    [
        ('x = "a # b"', '"a', "the value ends before '#'"),
        ('x = "a b"', '"a b"', "the quotes are part of the value, as in llama-server; write a b without them"),
        ("--x = 4", "4", "refuses dashes in front of a key; write x"),
    ],
)
def test_what_works_and_was_perhaps_not_meant(line: str, value: str, message: str) -> None:
    sections, problems = parse(f"[m]\n{line}\n", "p.ini")
    assert shape(sections) == {"m": [("x", value)]}
    (warning,) = warnings(problems)
    assert warning.startswith("p.ini:2:1: warning: ")
    assert message in warning


@given(st.text())
def test_any_text_is_understood_or_told_about(text: str) -> None:
    sections, problems = parse(text, "p.ini")
    assert all(problem.at is not None and problem.at.file == "p.ini" for problem in problems)
    assert len({section.name for section in sections}) == len(sections)


_KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
_VALUES = st.text(st.characters(codec="utf-8", exclude_characters=";#\"'\r\n\0"), max_size=12).map(str.strip)
_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="]\r\n\0"), min_size=1, max_size=8).map(
    lambda name: name.strip(" \t") or "m"
)


@given(st.dictionaries(_NAMES, st.lists(st.tuples(_KEYS, _VALUES), max_size=4), max_size=4))
def test_what_is_written_is_read_again(expected: Shape) -> None:
    text = "".join(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in s) for name, s in expected.items())
    sections, problems = parse(text, "p.ini")
    assert problems == []
    assert shape(sections) == expected


def test_several_samplers_are_said_in_letters() -> None:
    (warning,) = warnings(parse("[m]\nsamplers = top_k;top_p;temperature\n", "p.ini")[1])
    assert warning.endswith("; write sampler-seq = kpt")
    (other,) = warnings(parse("[m]\nsamplers = top_k;mine\n", "p.ini")[1])
    assert "sampler-seq" not in other
