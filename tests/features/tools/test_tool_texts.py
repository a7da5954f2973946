"""Lines for a model, the same however the bytes come; and edits, each exactly once and against the original."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.core.capped_output import MAX_OUTPUT, CappedOutput, whole_characters
from appliance.features.tools.core.texts import TRUNCATED, EditProblem, LineWindow, TextEdit, apply_edits

TEXT = st.text("aé\n→", max_size=40)


def fed(window: LineWindow, data: bytes, sizes: list[int]) -> str:
    at = 0
    for size in [*sizes, len(data)]:
        window.feed(data[at : at + size])
        at += size
    return window.text()


@given(
    TEXT,
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(-1, 5),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
)
def test_the_lines_that_were_asked_for(
    text: str, sizes: list[int], first: int, last: int | None, numbered: bool
) -> None:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    wanted = [
        f"{number}→{line}\n" if numbered else f"{line}\n"
        for number, line in enumerate(lines, 1)
        if number >= first and (last is None or number <= last)
    ]
    assert fed(LineWindow(first, last, numbered=numbered), text.encode(), sizes) == "".join(wanted)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=12), st.integers(1, 3))
def test_it_is_cut_at_the_limit(lengths: list[int], first: int) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    wanted = "".join("x" * length + "\n" for length in lengths[first - 1 :])
    window = LineWindow(first)
    window.feed(data)
    text = window.text()
    if len(wanted) <= MAX_OUTPUT:
        assert text == wanted
    else:
        assert text == wanted[:MAX_OUTPUT] + ("" if wanted[MAX_OUTPUT - 1] == "\n" else "\n") + TRUNCATED
        assert window.full


def test_a_character_is_not_cut() -> None:
    window = LineWindow()
    window.feed(b"x" * (MAX_OUTPUT - 1) + "é".encode() + b"\n")
    assert window.text() == "x" * (MAX_OUTPUT - 1) + "\n" + TRUNCATED


@given(TEXT, st.integers(0, 60), st.lists(st.integers(1, 9), max_size=8))
def test_output_is_capped_and_whole(text: str, limit: int, sizes: list[int]) -> None:
    output, data, at = CappedOutput(limit), text.encode(), 0
    kept = b""
    for size in [*sizes, len(data)]:
        kept += output.feed(data[at : at + size])
        at += size
    assert kept == output.kept == data[:limit]
    assert output.truncated == (len(data) > limit)
    assert text.startswith(output.text())


@given(st.binary(max_size=20))
def test_of_any_bytes_at_most_one_character_is_left_out(data: bytes) -> None:
    assert data.decode(errors="replace").startswith(whole := whole_characters(data))
    assert any(whole == data[: len(data) - back].decode(errors="replace") for back in range(4))


def edit(old: str, new: str) -> TextEdit:
    return TextEdit(old_text=old, new_text=new)


MANY = [f"<{n}>" for n in range(1001)]


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
        ("".join(MANY), [edit(each, "") for each in MANY], "there are 1001 edits; the most is 1000"),
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
