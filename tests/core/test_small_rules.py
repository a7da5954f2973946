"""Rules of a line or two that have no file of their own, by the properties that anybody would expect of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.answers.families import is_over
from appliance.core.answers.faults import fault_in
from appliance.core.findings import LONGEST, one_line
from appliance.core.followers import Followers
from appliance.core.machine_look import threads_for
from appliance.core.records.history import Happening, HistoryQuery, NoTimeline

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


def test_followers_are_called_in_their_order_until_they_leave() -> None:
    followers, heard = Followers[Callable[[int], None]](), list[tuple[str, int]]()

    def tell(number: int) -> None:
        for call in followers.calls:
            call(number)

    one, other = (partial(lambda name, number: heard.append((name, number)), name) for name in ("one", "other"))
    tell(1)
    with followers.follow(one):
        with followers.follow(other):
            tell(2)
        tell(3)
    tell(4)
    assert heard == [("one", 2), ("other", 2), ("one", 3)]


def test_a_timeline_that_keeps_nothing_has_followers_too() -> None:
    timeline, heard = NoTimeline(), list[str]()
    with timeline.follow(lambda entry: heard.append(entry.model)):
        timeline.add(Happening(kind="loaded", model="a"))
    timeline.add(Happening(kind="loaded", model="b"))
    assert heard == ["a"]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", "pictures"),
        ("Failed to load image or audio file", "media"),
        ("Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] ...", "arguments"),
        ("Failed to parse messages: [json.exception.type_error.302] type must be string, but is null", "messages"),
        ("Missing tool function", "tools"),
        ("unsupported content[].type", "part"),
        ("[json.exception.type_error.302] type must be array, but is string", "member"),
        ("'messages' is required", "member"),
        ("Jinja Exception: A system message is required", None),
        ("request (9 tokens) exceeds the available context size", None),
        ("The model produced output that does not match the expected peg-native format", None),
        ("out of memory", None),
    ],
)
def test_which_sentences_of_llama_server_are_about_a_mistake_of_the_clients(said: str, fault: str | None) -> None:
    assert fault_in(said) == fault
