"""What a model is told of the program: a stable layout, whose first line names its version."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from appliance.core.runs.turn import BiosContext, DirectiveReader, bios_text

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
    assert (found.tool, found.arguments) == ("report", '{"status": "ok"}')
