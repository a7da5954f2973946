"""The decisions of a run, rule by rule: transcripts/*.txt say what happens and what must follow."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal, get_args

import pytest
from msgspec import Raw, structs
from run_play import MESSAGES, NOW, TOOLS, Transcript, play, read

from appliance.core.turns import messages
from appliance.core.turns.bios import BiosContext, bios_text
from appliance.core.turns.toolloop import Loop, OutOfTurn

TRANSCRIPTS = [found for path in sorted(Path(__file__).parent.glob("transcripts/*.txt")) for found in read(path)]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=[f"{t.place} {t.title}" for t in TRANSCRIPTS])
def test_transcript(transcript: Transcript):
    play(transcript)


def test_the_transcripts_reach_every_reason_to_fail():
    told = {
        line.split('"')[1] for t in TRANSCRIPTS for line in t.lines if line.startswith("= fail_reason ") and '"' in line
    }
    assert told == set(get_args(messages.FailReason))


def body_of(commands: list[messages.RunCommand]) -> dict[str, object]:
    [command] = commands
    return json.loads(command.body)


def task(**fields: object) -> messages.Task:
    return messages.Task(model="m", messages=MESSAGES, tools=TOOLS, **fields)  # pyright: ignore[reportArgumentType]


CALL = messages.CallDelta(index=0, id="c1", name="list_files", arguments="{}")
CALLED = messages.TurnEnded(finish_reason="tool_calls")


def begun(what: messages.Task | None = None) -> Loop:
    loop = Loop(what or task())
    loop.begin(NOW)
    return loop


def calls(loop: Loop) -> Loop:
    """The model has called a tool, which runs."""
    loop.on_event(CALL, NOW)
    loop.on_event(CALLED, NOW)
    return loop


def second_turn(loop: Loop) -> dict[str, object]:
    calls(loop)
    return body_of(loop.on_event(messages.ToolFinished(call_id="c1", content="a"), NOW))


def test_a_request_carries_the_parameters_of_the_caller_and_the_tools_of_every_kind():
    params = {"temperature": Raw(b"0.5"), "knob_of_tomorrow": Raw(b'{"a": [1, 2]}'), "stream": Raw(b"false")}
    body = body_of(Loop(task(params=params, parallel_tool_calls=True)).begin(NOW))
    assert (body["model"], body["temperature"], body["knob_of_tomorrow"]) == ("m", 0.5, {"a": [1, 2]})
    assert (body["stream"], body["stream_options"], body["parallel_tool_calls"]) == (
        True,
        {"include_usage": True},
        True,
    )
    tools = body["tools"]
    assert [tool["function"]["name"] for tool in tools] == [tool.name for tool in TOOLS]
    assert tools[0] == {
        "type": "function",
        "function": {"name": "read_file", "description": "Reads", "parameters": json.loads(bytes(TOOLS[0].parameters))},
    }


def test_without_tools_nothing_is_said_of_tools():
    body = body_of(Loop(messages.Task(model="m", messages=MESSAGES)).begin(NOW))
    assert not {"tools", "parallel_tool_calls"} & set(body)


@pytest.mark.parametrize(
    ("choice", "later"),
    [(b'"required"', None), (b'{"type":"function","function":{"name":"list_files"}}', None), (b'"auto"', "auto")],
)
def test_a_choice_that_demands_a_call_holds_for_the_first_turn(choice: bytes, later: str | None):
    loop = Loop(task(params={"tool_choice": Raw(choice)}))
    assert body_of(loop.begin(NOW))["tool_choice"] == json.loads(choice)
    assert second_turn(loop).get("tool_choice") == later


def test_the_bios_is_made_anew_for_every_turn():
    zone = timezone(timedelta(hours=2), "CEST")
    loop = Loop(task(), worker="w", zone=zone)

    def told(body: dict[str, object], now: float, left: int) -> None:
        context = BiosContext(
            now=datetime.fromtimestamp(now, zone),
            worker="w",
            tools=("read_file", "list_files", "ask_user"),
            exit_tools=("report",),
            iterations_left=left,
        )
        assert body["messages"][0] == {"role": "system", "content": bios_text(context)}

    told(body_of(loop.begin(NOW)), NOW, 8)
    told(body_of(calls(loop).on_event(messages.ToolFinished(call_id="c1"), NOW + 60)), NOW + 60, 7)


@pytest.mark.parametrize(
    "event",
    [
        messages.TextDelta("x"),
        CALL,
        messages.TurnUsage(),
        CALLED,
        messages.TurnFailed(reason="server_died", detail=""),
        messages.ToolFinished(call_id="nobody"),
    ],
)
def test_what_cannot_happen_now_is_refused_and_changes_nothing(event: messages.RunEvent):
    loop = calls(begun())
    before = loop.outcome()
    with pytest.raises(OutOfTurn):
        loop.on_event(event, NOW)
    assert loop.outcome() == before
    body_of(loop.on_event(messages.ToolFinished(call_id="c1"), NOW))


def test_an_answer_counts_once():
    loop = begun(task(parallel_tool_calls=True))
    loop.on_event(CALL, NOW)
    loop.on_event(messages.CallDelta(index=1, id="c2", name="list_files"), NOW)
    loop.on_event(CALLED, NOW)
    assert loop.on_event(messages.ToolFinished(call_id="c1"), NOW) == []
    with pytest.raises(OutOfTurn):
        loop.on_event(messages.ToolFinished(call_id="c1"), NOW)


def test_a_run_begins_once():
    loop = begun()
    with pytest.raises(OutOfTurn):
        loop.begin(NOW)


def test_a_run_that_is_canceled_before_it_begins_never_does():
    loop = Loop(task())
    assert loop.on_event(messages.CancelAsked(), NOW) == [messages.Finish()]
    assert loop.begin(NOW) == []
    assert loop.outcome().state == "canceled"


def test_a_megabyte_of_arguments_in_small_pieces_is_linear_work():
    """About half a second in all; one that grew with the square of it would take minutes."""
    path = 'x"\n' * 250_000
    arguments = json.dumps({"path": path})
    loop = begun()
    began = time.thread_time()
    for at in range(0, len(arguments), 8):
        piece = messages.CallDelta(index=0, id="c1", name="read_file", arguments=arguments[at : at + 8])
        assert loop.on_event(piece, NOW) == []
    [command] = loop.on_event(CALLED, NOW)
    assert json.loads(command.calls[0].arguments) == {"path": path}
    body_of(loop.on_event(messages.ToolFinished(call_id="c1", content=path), NOW))
    assert time.thread_time() - began < 20


@pytest.mark.parametrize(
    ("arguments", "held_to", "passes"),
    [
        ('{"path": 7}', "schema", False),
        ('{"path": 7}', "object", True),
        ("[7]", "object", False),
        ("", "object", True),
        ("{broken", "object", False),
        ("{broken", "any", True),
    ],
)
def test_what_arguments_are_held_to(arguments: str, held_to: Literal["schema", "object", "any"], passes: bool):
    tool = structs.replace(TOOLS[0], arguments=held_to)
    loop = begun(messages.Task(model="m", messages=MESSAGES, tools=(tool,)))
    loop.on_event(messages.CallDelta(index=0, id="c1", name="read_file", arguments=arguments), NOW)
    [command] = loop.on_event(CALLED, NOW)
    assert isinstance(command, messages.RunTools) == passes
    assert (loop.outcome().fail_reason is None) == passes


MIB = 1 << 20


@pytest.mark.parametrize(
    "piece", [messages.TextDelta("x" * MIB), messages.CallDelta(index=0, name="list_files", arguments=" " * MIB)]
)
def test_a_run_does_not_grow_for_ever(piece: messages.RunEvent):
    loop = begun()
    for _ in range(63):
        assert messages.Finish() not in loop.on_event(piece, NOW)
    assert messages.Finish() in loop.on_event(messages.CallDelta(index=0, arguments="x" * 2 * MIB), NOW)
    assert (loop.outcome().state, loop.outcome().fail_reason) == ("failed", "unknown_error")
    assert loop.outcome().detail == "the run has become larger than 67108864 characters"


def test_results_count_too():
    loop = begun(task(max_tool_iterations=100))
    for number in range(9):
        loop.on_event(structs.replace(CALL, id=f"c{number}"), NOW)
        loop.on_event(CALLED, NOW)
        assert loop.outcome().state == "tool_running"
        loop.on_event(messages.ToolFinished(call_id=f"c{number}", content="y" * 8 * MIB), NOW)
        if loop.outcome().state == "failed":
            break
    assert number == 7
    assert loop.outcome().tool_trace[-1].error == "not answered: the run has become larger than 67108864 characters"
