"""Lines for a model: the same however the bytes come, and never more than the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.capped_output import MAX_OUTPUT, CappedOutput, whole_characters
from appliance.features.tools.core.texts import TRUNCATED, LineWindow

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
