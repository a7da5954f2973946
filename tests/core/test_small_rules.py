"""Rules of a line or two that have no file of their own, by the properties that anybody would expect of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.answers.families import is_over
from appliance.core.answers.faults import fault_in
from appliance.core.bodies.json_text import JSON
from appliance.core.bodies.keep_alive import FOR_EVER, seconds_of
from appliance.core.engine import Engine, same_start
from appliance.core.findings import LONGEST, one_line
from appliance.core.followers import Followers
from appliance.core.machine_look import threads_for
from appliance.core.memory import DeviceUse
from appliance.core.models.download import Location, WantedModel, parse_location
from appliance.core.records.history import Happening, HistoryQuery, NoTimeline, refusal
from appliance.core.reported import build_id
from appliance.core.scheduling.effects import Foresight
from appliance.core.tools.box import NoTools
from appliance.core.whole_numbers import whole_number
from appliance.errors import BadRequest, Busy, ModelFailedToStart

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


@example("\u00b2")
@example("9" * 5000)
@given(st.integers(0, 10**18 - 1).map(str) | st.text("0129-+_ .\u0663", max_size=20) | st.text())
def test_a_whole_number_is_its_digits_and_nothing_else_is_one(text: str) -> None:
    is_one = re.fullmatch("[0-9]{1,18}", text) is not None
    assert whole_number(text) == whole_number(text.encode()) == (int(text) if is_one else None)


def test_what_a_device_holds_is_all_of_its_kinds() -> None:
    use = DeviceUse(model=1, cache=2, compute=4, output=8)
    assert use.total == 15
    assert (use + use).total == 30


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
        ("MISSING TOOL FUNCTION", "tools"),
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


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(None, None), (-1, FOR_EVER), (-0.5, FOR_EVER), (0, 0.0), (7, 7.0), ("-1m", FOR_EVER), ("1m", 60.0)],
)
def test_how_long_a_model_is_to_stay(asked: JSON, seconds: float | None) -> None:
    assert seconds_of(asked) == seconds


def test_processes_start_alike_unless_command_files_or_arguments_differ() -> None:
    one = Engine(name="a", backend="cpu", version=None, command=("a",), source="here")
    assert same_start(one, structs.replace(one, gpus={"CUDA0": "gpu0"}, id="x"))
    for change in ({"command": ("b",)}, {"digest": "b"}, {"args": ("--device", "b")}):
        assert not same_start(one, structs.replace(one, **change))


@pytest.mark.parametrize(
    ("build", "shown"),
    [("", ""), ("embedded", "embedded"), ("linux-x64-cpu/b1", "linux-x64-cpu/b1"), ("/home/me/server", "a program")],
)
def test_the_path_of_a_program_is_not_reported(build: str, shown: str) -> None:
    assert build_id(build) == shown


def test_a_refusal_counts_as_one_request_unless_there_are_more() -> None:
    assert [refusal("m", Busy("x"), *more).requests for more in ((), (3,))] == [1, 3]


@pytest.mark.parametrize(
    ("foresight", "room"),
    [
        (Foresight(), "free"),
        (Foresight(goes=("a",)), "idle"),
        (Foresight(goes=("a",), held=("a",)), "none"),
        (Foresight(refused=Busy("x")), "none"),
    ],
)
def test_the_room_that_a_model_would_find(foresight: Foresight, room: str) -> None:
    assert foresight.room == room


def test_where_there_are_no_tools_none_can_be_named() -> None:
    assert NoTools().select(["*", "mcp:*"]) == ()
    with pytest.raises(BadRequest, match="no tool 'clock'"):
        NoTools().select(["*", "clock"])


@pytest.mark.parametrize("path", ["datasets/o/r/resolve/main/a.gguf", "o/a.gguf", "o/r/resolve/main"])
def test_an_address_of_the_hub_that_is_no_models_file_is_fetched_as_it_is(path: str) -> None:
    assert isinstance(parse_location(f"https://huggingface.co/{path}", None), Location)
    assert isinstance(parse_location("https://huggingface.co/o/r/blob/main/a.gguf", None), WantedModel)


def test_a_failure_ends_with_the_last_lines_of_the_log_if_there_are_some() -> None:
    assert [ModelFailedToStart("m", "it died", lines).tail for lines in ((), ("a", "b"))] == [
        "",
        "; its last log lines:\n  a\n  b",
    ]
