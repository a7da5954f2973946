"""Rules of a line or two that have no file of their own, by the properties that anybody would expect of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.answers.families import is_over
from appliance.core.findings import LONGEST, one_line
from appliance.core.machine_look import threads_for
from appliance.core.records.history import HistoryQuery

CORES = st.integers(1, 256)


@given(st.text())
def test_a_message_is_its_first_line_and_never_too_long(text: str) -> None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for message in (text, "x" * LONGEST, "x" * (LONGEST + 1)):
        assert len(one_line(message)) <= LONGEST
    assert one_line("x" * LONGEST) == "x" * LONGEST
    assert one_line("x" * (LONGEST + 1)).endswith("x...")
    if lines and len(lines[0]) <= LONGEST:
        assert one_line(text) == lines[0]


@example(8, 4, 300)
@given(CORES, st.none() | CORES, st.floats(0.1, 300) | st.just(math.inf))
def test_a_model_on_the_processor_leaves_a_core(processors: int, physical: int | None, quota: float) -> None:
    threads = threads_for(processors, physical, quota)
    assert threads >= 1
    assert threads == 1 or threads < min(processors, physical or processors, quota + 1)
    assert threads_for(processors, physical, math.inf) >= threads


@pytest.mark.parametrize(
    ("query", "oldest"),
    [
        (HistoryQuery(), False),
        (HistoryQuery(after=1), True),
        (HistoryQuery(start=datetime.now(UTC)), True),
        (HistoryQuery(after=1, before=9), False),
    ],
)
def test_entries_after_a_place_are_read_from_there(query: HistoryQuery, oldest: bool) -> None:
    assert query.from_oldest is oldest


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", ""])
def test_a_stream_is_over_when_its_last_record_is_whole_and_says_so(end: str) -> None:
    ends = {"data: [DONE]": True, 'data: {"choices":[{"delta":{"content":"x"}}]}': False}
    for record, is_last in ends.items():
        assert is_over(f"data: {{}}\n\n{record}{end}".encode()) is (is_last and end != "")
