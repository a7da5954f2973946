"""grep's output, whose file names may hold what it separates with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.features.tools.core.search import GrepLines


@given(st.lists(st.text("a1:-.", min_size=1, max_size=6), min_size=1, max_size=4, unique=True), st.data())
def test_what_grep_says_is_told_with_and_without_numbers(names: list[str], data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(":-"), st.integers(1, 999), st.text("xyz ", max_size=6)),
            max_size=8,
        )
    )
    output = "".join(f"{name}{mark}{number}{mark}{text}\n" for name, mark, number, text in rows).encode()
    lines = GrepLines(names, "", numbers=True, limit=100)
    size = data.draw(st.integers(1, 50))
    assert all(lines.feed(output[at : at + size]) for at in range(0, len(output), size))
    # Names of these letters can make a line that reads in two ways; it is told as it was said in each.
    assert lines.text.encode() == output
    assert lines.matches <= len(rows)


def test_one_file_has_no_name_in_grep_s_output() -> None:
    lines = GrepLines((), "given/name", numbers=False, limit=100)
    assert lines.feed(b"3:three:4\n4-four\n--\n")
    assert (lines.text, lines.matches) == ("given/name:three:4\ngiven/name-four\n--\n", 1)


def test_it_ends_at_the_limit() -> None:
    lines = GrepLines(("f",), "", numbers=False, limit=2)
    assert not lines.feed(b"f:1:a\nf:2:b\nf:3:c\nf:4:d\n")
    assert (lines.text, lines.matches, lines.full) == ("f:a\nf:b\n", 2, True)


def test_lines_of_no_known_file_are_let_go() -> None:
    lines = GrepLines(("f",), "", numbers=True, limit=9)
    assert lines.feed(b"Binary file g matches\nf:1:a\n")
    assert lines.text == "f:1:a\n"
