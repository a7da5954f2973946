"""The same line over and over, however the text is cut."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.runs.turn import LineRepeats


@given(st.lists(st.sampled_from(["a", "b", "", " a "])), st.integers(1, 4), st.integers(1, 5))
def test_it_is_found_when_the_line_ends_for_the_last_time(lines: list[str], limit: int, size: int):
    text = "".join(f"{line}\n" for line in lines)
    repeats = LineRepeats(limit)
    for at in range(0, len(text), size):
        repeats.feed(text[at : at + size])
    runs = [(line, len(list(run))) for line, run in groupby(line.strip() for line in lines if line.strip())]
    wanted = [line for line, times in runs if times >= limit]
    assert repeats.found == (wanted[0] if wanted else None)


def test_a_line_that_is_not_over_may_still_be_another():
    repeats = LineRepeats(2)
    repeats.feed("again\nagain")
    repeats.feed(" and more\n")
    assert repeats.found is None
