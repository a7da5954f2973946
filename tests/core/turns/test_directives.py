"""What a model is told of the program, and calls written as text: never shown, never missed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import groupby

import pytest
from cutting import cut
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from appliance.core.turns.bios import (
    BIOS_FACTS,
    FENCE,
    MARK,
    BiosContext,
    bios_facts,
    bios_of,
    bios_text,
    explains_format,
    unknown_fact,
)
from appliance.core.turns.messages import Task
from appliance.core.turns.turn import DirectiveReader, DirectiveReading, LineRepeats, RunPrompt

CONTEXT = BiosContext(
    now=datetime(2026, 11, 20, 19, 30, 5, tzinfo=timezone(timedelta(hours=1), "CET")),
    worker="starter",
    tools=("read_file", "list_files"),
    exit_tools=("report",),
    iterations_left=7,
)


def test_the_text_of_version_1():
    assert bios_text(CONTEXT) == (
        "[BIOS v=1]\n"
        "Time: 2026-11-20 19:30:05+01:00 (CET)\n"
        "Worker: starter\n"
        "Tool iterations left: 7\n"
        "Tools: read_file, list_files\n"
        "Exit tools: report\n"
        "Tool rules:\n"
        "- A tool's result comes back to you as a message before you go on. Never invent a result.\n"
        "- Several calls in one turn use up one iteration. With 0 iterations left, answer without tools.\n"
        "- Exit tools only signal: a call is noted, there is no result, and you do not wait for one.\n"
        "Call a tool the way you were trained to. Only if you cannot, end your turn with exactly this:\n"
        "```tool_call\n"
        '{"tool": "<name>", "arguments": {...}}\n'
        "```"
    )


def test_without_tools_it_speaks_of_none():
    plain = BiosContext(now=CONTEXT.now, worker="w", tools=(), exit_tools=(), iterations_left=8)
    assert bios_text(plain).splitlines() == [
        "[BIOS v=1]",
        "Time: 2026-11-20 19:30:05+01:00 (CET)",
        "Worker: w",
        "Tools: none",
    ]


def test_a_model_that_follows_the_text_to_the_letter_is_understood():
    reader = DirectiveReader()
    example = bios_text(CONTEXT).partition("exactly this:\n")[2]
    reader.feed(example.replace("<name>", "report").replace("{...}", '{"status": "ok"}'))
    [found] = reader.end().directives
    assert (found.name, found.arguments) == ("report", '{"status": "ok"}')


def test_a_text_of_the_callers_takes_its_place_with_the_facts_of_the_turn():
    wish = "[BIOS v=mine/${version}]\nIt is ${time} in ${zone}. ${worker} has ${iterations_left}: ${tools}; $tools {x}"
    own = bios_of(wish)
    assert own is not None
    assert own(CONTEXT) == (
        "[BIOS v=mine/1]\nIt is 2026-11-20 19:30:05+01:00 in CET. starter has 7: read_file, list_files; $tools {x}"
    )
    assert "has 6: " in own(structs.replace(CONTEXT, iterations_left=6))
    everything = bios_of("\n".join(f"${{{name}}}" for name in BIOS_FACTS))
    assert everything is not None
    assert everything(CONTEXT) == "\n".join(bios_facts(CONTEXT)[name] for name in BIOS_FACTS)
    assert (bios_of(True), bios_of(False), bios_of("")) == (bios_text, None, None)


def test_it_comes_before_the_callers_own_system_message():
    messages = (Raw(b'{"role":"system","content":"S"}'), Raw(b'{"role":"user","content":"U"}'))
    for bios, said in (("${worker} has ${iterations_left}", ["w has 3"]), (False, []), ("", [])):
        prompt = RunPrompt(Task(model="m", messages=messages, bios=bios), worker="w", zone=UTC)
        sent = json.loads(prompt.body(0.0, 3))["messages"]
        assert [message["content"] for message in sent] == [*said, "S", "U"]
        assert [message["role"] for message in sent] == ["system"] * (len(said) + 1) + ["user"]


def test_calls_in_plain_text_count_only_where_the_text_explains_them():
    assert [explains_format(wish) for wish in (True, False, "x", "x ${call_format}", "$call_format")] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert [unknown_fact(wish) for wish in (True, "${time}", "${time} ${tim}", "${}")] == [None, None, "tim", ""]


OTHERS = ["\n", "\r\n", " ", "  ", "    ", "a b", "x", "-"]
WORDS = st.sampled_from([MARK, FENCE, "`", "``", "tool_call", "```json", "{}", '{"tool": "a"}', *OTHERS])
TEXTS = st.lists(WORDS, max_size=20).map("".join)
CUTS = st.lists(st.integers(0, 120), max_size=12)


def read(text: str, at: Sequence[int] = ()) -> tuple[str, DirectiveReading]:
    """What is shown while the text comes, and what the end makes of the rest."""
    reader = DirectiveReader()
    shown = "".join(map(reader.feed, cut(text, at)))
    return shown, reader.end()


def directive(tool: str, arguments: object) -> str:
    return f"{MARK}\n{json.dumps({'tool': tool, 'arguments': arguments})}\n{FENCE}"


@given(TEXTS, CUTS)
def test_nothing_is_lost_and_cutting_makes_no_difference(text: str, at: list[int]):
    shown, reading = read(text, at)
    assert shown + reading.raw == text
    whole_shown, whole = read(text)
    assert (reading.directives, reading.problem) == (whole.directives, whole.problem)
    assert shown + reading.text == whole_shown + whole.text


@given(TEXTS, CUTS)
def test_text_without_the_mark_is_shown_as_it_is(text: str, at: list[int]):
    text = text.replace(MARK, "")
    if MARK not in text:
        shown, reading = read(text, at)
        assert shown + reading.text == text
        assert (reading.directives, reading.problem) == ((), None)


@given(
    st.text("abc ,.", max_size=20),
    st.dictionaries(st.text(), json_values(), max_size=3),
    st.text("abc ,.\n", max_size=20),
    CUTS,
)
def test_a_directive_is_found_wherever_it_stands(before: str, arguments: dict[str, object], after: str, at: list[int]):
    lead = before + "\n" if before else ""
    call = directive("read_file", arguments)
    shown, reading = read(f"{lead}{call}\n{after}", at)
    assert shown == lead
    assert reading.problem is None
    [found] = reading.directives
    assert (found.name, json.loads(found.arguments), found.raw) == ("read_file", arguments, call)
    assert reading.text == after


def test_fences_within_a_string_do_not_end_a_directive():
    _, reading = read(directive("write_file", {"content": "```python\nx = 1\n```\n```tool_call\n{}\n```"}))
    [found] = reading.directives
    assert json.loads(found.arguments)["content"].endswith("```tool_call\n{}\n```")


def test_several_directives_are_several_calls():
    shown, reading = read(f"One:\n{directive('a', {})}\nand\n{directive('b', {'x': 1})}\n")
    assert shown + reading.text == "One:\nand\n"
    assert [(found.name, found.arguments) for found in reading.directives] == [("a", "{}"), ("b", '{"x": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "read_file", "arguments": {}}',
        '```json\n{"tool": "read_file", "arguments": {}}\n```',
        'say ```tool_call\n{"tool": "read_file"}\n```',
        '```tool_call-example\n{"tool": "read_file"}\n```',
        '    ```tool_call\n    {"tool": "read_file"}\n    ```',
        "````tool_call\n",
    ],
)
def test_what_is_no_directive(text: str):
    shown, reading = read(text)
    assert shown + reading.text == text
    assert (reading.directives, reading.problem) == ((), None)


@pytest.mark.parametrize(
    "text",
    [
        f'  {MARK}\r\n{{"tool": "a", "arguments": {{}}}}\r\n  {FENCE}\r\n',
        f'{MARK} {{"tool": "a", "arguments": {{}}}}{FENCE}',
        f'{MARK}\n{{\n  "tool": "a",\n  "arguments": {{}}\n}}',
        f'{MARK}\n{{"tool": "a", "why": "because"}}\n{FENCE}',
    ],
)
def test_what_is_let_pass_as_one(text: str):
    _, reading = read(text)
    assert [(found.name, found.arguments) for found in reading.directives] == [("a", "{}")]


@pytest.mark.parametrize(
    "body",
    [
        *("", "read_file", "{}", '{"tool": 7}', '["tool"]', '{"tool": "a"', '{"tool": "a"} and more'),
        '{"tool": "a", "arguments": ' + "[" * 1_000_000,
    ],
)
def test_what_is_delimited_and_cannot_be_read_is_a_problem_and_kept(body: str):
    shown, reading = read(f"a\n{MARK}\n{body}\n{FENCE}\nb")
    assert reading.problem is not None
    assert len(reading.problem) < 200
    assert shown + reading.text == f"a\n{MARK}\n{body}\n{FENCE}\nb"


def test_what_is_held_back_can_be_let_go():
    reader = DirectiveReader()
    assert reader.feed(f"a\n{MARK}\n{{") == "a\n"
    assert reader.release() == f"{MARK}\n{{"
    assert reader.end().raw == ""


# ---- the same line over and over -------------------------------------------------------------------------------------


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
