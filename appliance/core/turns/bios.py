"""The BIOS: the program's own system message of a run, written anew for every turn, or a caller's text in its place.

It tells the model the time, its tools and the rest of its budget. Its layout is stable, and its first line names the
version. A model may repeat all of it: it holds no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from msgspec import Struct

MARK = "```tool_call"
FENCE = "```"
"""The first and the last line of a call in plain text: see `core.turns.turn`."""
VERSION = 1
_TOOL_RULES = """\
- A tool's result comes back to you as a message before you go on. Never invent a result.
- Several calls in one turn use up one iteration. With 0 iterations left, answer without tools."""
_EXIT_RULES = """\
- Exit tools only signal: a call is noted, there is no result, and you do not wait for one."""
_FALLBACK = f"""\
Call a tool the way you were trained to. Only if you cannot, end your turn with exactly this:
{MARK}
{{"tool": "<name>", "arguments": {{...}}}}
{FENCE}"""
CALL_FORMAT = "call_format"
"""The fact that tells a model how to call tools in plain text; without it nobody looks for such calls."""
BIOS_FACTS = (
    "version", "time", "zone", "worker", "iterations_left", "tools", "exit_tools", "tool_rules", CALL_FORMAT,
)  # fmt: skip
_FACT = re.compile(r"\$\{([^{}]*)\}")


class BiosContext(Struct, frozen=True, kw_only=True):
    """The facts in the text. ``now`` carries its time zone."""

    version: int = VERSION
    """The layout's version; it changes when a reader of the text could notice."""
    now: datetime
    worker: str
    tools: tuple[str, ...]
    """Names of the tools whose results return to the model."""
    exit_tools: tuple[str, ...]
    iterations_left: int


Bios = Callable[[BiosContext], str]
"""Writes the program's own system message, anew for every turn. Its text is visible to the model."""


def bios_text(context: BiosContext) -> str:
    """Return version 1 of the text."""
    facts = bios_facts(context)
    lines = [f"[BIOS v={facts['version']}]", f"Time: {facts['time']} ({facts['zone']})", f"Worker: {facts['worker']}"]
    if not context.tools and not context.exit_tools:
        return "\n".join([*lines, "Tools: none"])
    lines += [
        f"Tool iterations left: {facts['iterations_left']}",
        f"Tools: {facts['tools']}",
        f"Exit tools: {facts['exit_tools']}",
        "Tool rules:",
        facts["tool_rules"],
        facts["call_format"],
    ]
    return "\n".join(lines)


def bios_facts(context: BiosContext) -> dict[str, str]:
    """Return the facts that a text of the caller may name, as ``${time}``."""
    rules = [*([_TOOL_RULES] if context.tools else ()), *([_EXIT_RULES] if context.exit_tools else ())]
    return {
        "version": str(context.version),
        "time": context.now.isoformat(sep=" ", timespec="seconds"),
        "zone": context.now.tzname() or "no time zone",
        "worker": context.worker,
        "iterations_left": str(context.iterations_left),
        "tools": ", ".join(context.tools) or "none",
        "exit_tools": ", ".join(context.exit_tools) or "none",
        "tool_rules": "\n".join(rules),
        "call_format": _FALLBACK if rules else "",
    }


def bios_of(wish: str | bool) -> Bios | None:
    """The provider that a run wants: the program's own, none, or a text of its own that names facts."""
    if isinstance(wish, bool):
        return bios_text if wish else None
    return (lambda context: _FACT.sub(_fact_of(bios_facts(context)), wish)) if wish else None


def _fact_of(facts: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda found: facts[found[1]]


def unknown_fact(wish: str | bool) -> str | None:
    """Return the first name in a text that is not a fact."""
    named = _FACT.findall(wish) if isinstance(wish, str) else []
    return next((name for name in named if name not in BIOS_FACTS), None)


def explains_format(wish: str | bool) -> bool:
    """Return whether the text explains calls in plain text."""
    return wish if isinstance(wish, bool) else CALL_FORMAT in _FACT.findall(wish)
