"""Edits: all against the original, exactly once each, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.features.tools.core.texts import EditProblem, TextEdit, apply_edits


def edit(old: str, new: str) -> TextEdit:
    return TextEdit(old_text=old, new_text=new)


@given(
    st.lists(st.tuples(st.text("xy \n\r\t“é", max_size=6), st.text("xy\n", max_size=6)), min_size=1, max_size=6),
    st.text("xy \n", max_size=6),
    st.randoms(use_true_random=False),
)
def test_pieces_that_are_there_once_are_replaced_and_the_rest_stays(parts, end: str, random) -> None:
    marks = [f"<{n}>" for n in range(len(parts))]
    text = "".join(before + mark for (before, _), mark in zip(parts, marks, strict=True)) + end
    edits = [edit(mark, new) for (_, new), mark in zip(parts, marks, strict=True)]
    random.shuffle(edits)
    assert apply_edits(text, edits) == "".join(before + new for before, new in parts) + end


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=3, max_size=8), st.data())
def test_a_piece_is_found_although_its_spaces_and_quotes_are_others(words: list[str], data: st.DataObject) -> None:
    lines = [f"{n}{word}“{n}”" for n, word in enumerate(words)]
    at = data.draw(st.integers(0, len(lines) - 1))
    ends = [data.draw(st.sampled_from(["", " ", "\t ", "\r"])) for _ in lines]
    text = "\n".join(line + end for line, end in zip(lines, ends, strict=True)) + "\n"
    wanted = lines[at].replace("“", '"').replace("”", '"') + data.draw(st.sampled_from(["", "  "]))
    changed = apply_edits(text, [edit(wanted, "NEW")])
    before, after = text.split("\n"), changed.split("\n")
    assert len(before) == len(after)
    assert [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [at]
    assert after[at].startswith("NEW")


@pytest.mark.parametrize(
    ("text", "edits", "word"),
    [
        ("dup\ndup\n", [edit("dup", "x")], "unique"),
        ("aaa", [edit("aa", "x")], "unique"),
        ("dup \ndup\t\n", [edit("dup\n", "x")], "unique"),
        ("line1\nline2\n", [edit("line1\nline2", "a"), edit("line2", "b")], "overlap"),
        ("abc", [edit("", "x")], "empty"),
        ("abc", [], "non-empty"),
        ("abc", [edit("b", "b")], "no changes"),
        ("abc", [edit("z", "x")], "could not find"),
        ("abc", [edit("  ", "x")], "could not find"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(text: str, edits: list[TextEdit], word: str) -> None:
    with pytest.raises(EditProblem, match=word):
        apply_edits(text, edits)


@pytest.mark.parametrize(
    ("text", "edits", "changed"),
    [
        ("a b", [edit("a", "b"), edit("b", "a")], "b a"),  # all against the original
        ("ab", [edit("a", "1"), edit("b", "2")], "12"),  # neighbours do not overlap
        ("a\r\nb\r\nc\r\n", [edit("a\nb", "x\ny")], "x\r\ny\r\nc\r\n"),  # the file's line ends are kept
    ],
)
def test_what_is_changed(text: str, edits: list[TextEdit], changed: str) -> None:
    assert apply_edits(text, edits) == changed


@given(st.text(max_size=60), st.text(max_size=10), st.text(max_size=10))
def test_any_text_is_replaced_or_refused(text: str, old: str, new: str) -> None:
    try:
        changed = apply_edits(text, [edit(old, new)])
    except EditProblem:
        return
    assert changed != text
    if text.count(old) == 1:
        assume("\r" not in text)
        assert changed == text.replace(old, new)


def test_the_number_of_edits_is_bounded():
    edits = [TextEdit(old_text=f"{n};", new_text="") for n in range(1001)]
    with pytest.raises(EditProblem, match="there are 1001 edits; the most is 1000"):
        apply_edits("".join(f"<{n};>" for n in range(1001)), edits)
