"""The prose check finds what it is for, and leaves good sentences alone."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

PROSE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "prose.py")))


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
