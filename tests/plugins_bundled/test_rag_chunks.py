"""Documents to sections to chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bundled import module
from hypothesis import given
from hypothesis import strategies as st

sections = module("rag", "sections").sections
chunks = module("rag", "chunks").chunks

MARKDOWN = """intro

# Alpha
one
## Beta #
two
```
# no heading
```
# Gamma

three
"""
HTML = """<html><head><title>Shop</title><style>p {color: red}</style><script>var x = "hidden"</script></head>
<body><p>Welcome &amp; hello</p><h1>Prices</h1><ul><li>Tea 3</li><li>Milk 2</li></ul>
<h2>Old <b>ones</b></h2><table><tr><td>Gin</td><td>9</td></tr></table></body></html>"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param(
            "a.md",
            MARKDOWN,
            [
                ("", 1, "intro"),
                ("Alpha", 4, "one"),
                ("Alpha > Beta", 6, "two\n```\n# no heading\n```"),
                ("Gamma", 11, "three"),
            ],
            id="markdown",
        ),
        pytest.param(
            "a.html",
            HTML,
            [
                ("", 0, "Shop\n\nWelcome & hello"),
                ("Prices", 0, "Tea 3\n\nMilk 2"),
                ("Prices > Old ones", 0, "| Gin | 9"),
            ],
            id="html",
        ),
        pytest.param(
            "a.csv",
            "name;price\ntea;3\nmilk;2\n",
            [("name, price", 0, "name: tea, price: 3\n\nname: milk, price: 2")],
            id="csv",
        ),
        pytest.param("a.json", '{"a": 1, "b": ["x"]}', [("", 0, 'a: 1\n\nb: ["x"]')], id="json object"),
        pytest.param("a.json", '["ä", {"b": 1}]', [("", 0, '"ä"\n\n{"b": 1}')], id="json array"),
        pytest.param("a.json", "{not json", [("", 1, "{not json")], id="json that is none"),
        pytest.param("a.jsonl", '{"a": 1}\n{"a": 2}\n', [("", 1, '{"a": 1}\n\n{"a": 2}')], id="json lines"),
        pytest.param("a.py", "x = 1\r\n\r\ny = 2\r\n", [("", 1, "x = 1\n\ny = 2")], id="source"),
        pytest.param("a.md", " \n\n", [], id="nothing"),
    ],
)
def test_sections(name: str, text: str, expected: list[tuple[str, int, str]]) -> None:
    assert [(part.heading, part.line, part.text.strip()) for part in sections(name, text)] == expected


@given(st.sampled_from(["md", "rst", "html", "csv", "tsv", "json", "jsonl", "txt"]), st.text())
def test_no_text_is_too_odd_for_sections(ending: str, text: str) -> None:
    for section in sections(f"a.{ending}", text):
        assert section.text.strip()


def test_a_chunk_knows_its_line_and_heading() -> None:
    text = "# Top\n" + "\n\n".join(f"paragraph {n} " + "word " * 12 for n in range(8))
    found = list(chunks(sections("a.md", text), 200, 40))
    assert len(found) > 2
    lines = text.split("\n")
    for number, chunk in enumerate(found):
        first_new = chunk.text if number == 0 else chunk.text.split("\n\n", 1)[1]
        assert lines[chunk.line - 1].startswith(first_new.split("\n")[0][:20])
        assert chunk.embedded.startswith("Top\n")
    [chunk] = chunks(sections("a.md", "# Top\n\n  \n    indented\n"), 200, 40)
    assert (chunk.line, chunk.text) == (4, "    indented")


def test_a_chunk_begins_with_the_end_of_the_last() -> None:
    text = "\n\n".join(f"sentence {n} of the story is told here" for n in range(40))
    found = list(chunks(sections("a.txt", text), 300, 60))
    for before, after in pairwise(found):
        overlap = after.text.split("\n\n")[0]
        assert before.text.endswith(overlap)
        assert 0 < len(overlap) <= 60


@given(
    st.lists(st.text(st.sampled_from("ab .\n\té日"), max_size=300), max_size=5).map("\n\n".join),
    st.integers(100, 400),
    st.integers(0, 50),
)
def test_chunks_are_bounded_and_hold_everything(text: str, size: int, overlap: int) -> None:
    found = list(chunks(sections("a.txt", text), size, overlap))
    assert all(0 < len(chunk.text) <= size for chunk in found)
    without = "".join(chunk.text for chunk in chunks(sections("a.txt", text), size, 0))
    assert "".join(without.split()) == "".join(text.split())


def test_a_word_longer_than_a_chunk_is_cut() -> None:
    found = list(chunks(sections("a.txt", "x" * 1000), 150, 30))
    assert all(len(chunk.text) <= 150 for chunk in found)
    assert sum(chunk.text.count("x") for chunk in found) >= 1000
