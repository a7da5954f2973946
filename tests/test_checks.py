"""The checks of prose, imports and sleeps find what they are for, and leave the rest alone."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


def check(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / ".ci" / f"{name}.py")))


PROSE, CHECK, BANNED = check("prose"), check("imports"), check("banned")
BRINGS = {"yaml": ["PyYAML"], "quart_trio": ["quart-trio"], "trio": ["trio"]}


def test_a_detour_is_named_and_a_tree_is_not() -> None:
    assert CHECK.cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
    around = CHECK.cycle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    assert around[0] == around[-1]
    assert set(around) == {"a", "b", "c"}


def test_what_a_file_imports() -> None:
    source = (
        "import os, yaml.nodes\nfrom trio import run\nfrom . import x\nfrom appliance import y\ndef f():\n import rich"
    )
    assert list(CHECK.imported(source)) == ["yaml", "trio", "rich"]


@pytest.mark.parametrize(
    ("names", "required", "told"),
    [
        (["yaml", "quart_trio"], ["pyyaml>=6", "Quart-Trio[x]>=1"], []),
        (["trio", "yaml"], ["trio"], ["yaml is imported and not among the dependencies; name pyyaml"]),
        (["trio"], ["trio", "h11>=0.16"], ["h11 is among the dependencies and not imported; remove it"]),
        (["unknown"], [], ["unknown is imported and not among the dependencies; name unknown"]),
    ],
)
def test_dependencies_are_what_is_imported(names: list[str], required: list[str], told: list[str]) -> None:
    assert list(CHECK.difference(names, required, BRINGS)) == told


def test_a_requirement_begins_with_a_name() -> None:
    assert [CHECK.distribution(text) for text in ("ruamel.yaml>=0.18", "a_B[c] ; x", "d==1")] == [
        "ruamel-yaml",
        "a-b",
        "d",
    ]


DO = "sleep"  # so that these lines are none themselves


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"time.{DO}(0.3)", True),
        (f"await trio.{DO}(1.5 * keeps)", True),
        (f"await trio.{DO}(TERM / 5)", True),
        (f"shell('{DO} 2; true')", True),
        (f"time.{DO}(0.2)", False),
        (f"await trio.{DO}(pause)", False),
        (f"time.{DO}(300)", False),
        (f"time.{DO}(2)  # the child ends it", False),
    ],
)
def test_a_long_sleep_needs_a_comment(line: str, found: bool) -> None:
    test = f"async def test_it():\n    {line}\n"
    assert [number for number, _ in BANNED.unexplained_sleeps(test)] == [2] * found
    assert not list(BANNED.unexplained_sleeps(test.replace("    ", "    # said\n    ", 1)))
    assert not list(BANNED.unexplained_sleeps(test.replace("()", "(autojump_clock)", 1)))


@pytest.mark.parametrize(
    "sentence",
    [
        "Who does not answer in time gives no tools.",
        "It ends. Whoever comes back gets every byte.",
        "What is found: What the user says counts.",
        "It is no file.",
        "A key will do, too.",
        "The answer goes on on the next engine.",
        "The client is told so.",
        "A list in place of a name.",
        "The lock is held by whoever installs.",
        "It is read strictly. Whatever a proxy reads otherwise is refused.",
        "All that ends a request goes through here.",
        "Nobody holds it any more.",
        "Somebody else writes now.",
        "Hidden ones are none.",
        "Close it; twice is once.",
        "It begins now.",
        "A function hears them.",
        "Files that the system does not let go of.",
        "Markup nested deeper than anybody writes.",
        "The size cannot be foretold.",
    ],
)
def test_awkward_sentences_are_found_in_each_kind_of_text(sentence: str) -> None:
    assert list(PROSE.phrases(sentence))
    assert list(PROSE.markdown(f"# Title\n\n- one\n- {sentence}\n"))
    assert list(PROSE.markdown(f"| a | {sentence} |\n"))
    assert list(PROSE.python(f'def f():\n    """{sentence}"""\n'))
    assert list(PROSE.python(f"say({sentence!r})\n"))


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no such file, and it is no longer needed.",
        "What is wrong? Who knows.",
        "The two are too large; nobody told them.",
        "There are none, and it is none of the two.",
        "Closing twice is fine. Where is it? Anyone who knows it can say so.",
        "Run `Who is no one, too.` yourself.",
    ],
)
def test_plain_sentences_pass(sentence: str) -> None:
    assert not list(PROSE.phrases(sentence))
    assert not list(PROSE.markdown(f"{sentence}\n\n    {sentence} is no text, too.\n"))


def test_lines_of_markdown_have_an_end() -> None:
    long = "word " * 30
    assert [line for line, _ in PROSE.markdown(f"short\n{long}\n\n    {long}\n\n| {long} |\n\n{'x' * 200}\n")] == [2]


@pytest.mark.parametrize(
    "source",
    [
        'def public():\n    """Whether it is so."""\n',
        'def _private():\n    """How it is."""\n',
        'X = 1\n"""What it is."""\n',
    ],
)
def test_docstrings_begin_with_a_noun_or_a_verb(source: str) -> None:
    assert len(list(PROSE.python(source))) >= 1
    assert not list(PROSE.python(source.replace("Whether", "True if").replace("How", "Ask").replace("What it", "It")))


def test_comments_are_read_as_one_text() -> None:
    source = "x = 1\n# A file that is\n# no model.\ny = 2  # a word\n"
    assert [line for line, _ in PROSE.python(source)] == [2]
    assert not list(PROSE.python(source.replace("no model", "not a model")))
