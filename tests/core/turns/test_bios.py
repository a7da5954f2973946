"""What a model is told of the program: a stable layout, whose first line names its version."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

from msgspec import Raw, structs

from appliance.core.turns.bios import (
    BIOS_FACTS,
    BiosContext,
    bios_facts,
    bios_of,
    bios_text,
    explains_format,
    unknown_fact,
)
from appliance.core.turns.messages import Task
from appliance.core.turns.turn import DirectiveReader, RunPrompt

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
