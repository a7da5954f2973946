"""The program's own system message of a run: it tells the model the time, its tools and the rest of its budget.

The layout is stable, and its first line names the version. A model may repeat all of it: it holds no secret.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from appliance.core.directives import FENCE, MARK

VERSION = 1


class BiosContext(Struct, frozen=True, kw_only=True):
    """The facts in the text. ``now`` carries its time zone."""

    now: datetime
    worker: str
    tools: tuple[str, ...]
    """Names of the tools whose results return to the model."""
    exit_tools: tuple[str, ...]
    iterations_left: int


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


def bios_text(context: BiosContext) -> str:
    """Return version 1 of the text, which is written anew for every turn."""
    zone = context.now.tzname() or "no time zone"
    lines = [
        f"[BIOS v={VERSION}]",
        f"Time: {context.now.isoformat(sep=' ', timespec='seconds')} ({zone})",
        f"Worker: {context.worker}",
    ]
    if not context.tools and not context.exit_tools:
        return "\n".join([*lines, "Tools: none"])
    lines += [
        f"Tool iterations left: {context.iterations_left}",
        f"Tools: {', '.join(context.tools) or 'none'}",
        f"Exit tools: {', '.join(context.exit_tools) or 'none'}",
        "Tool rules:",
    ]
    if context.tools:
        lines.append(_TOOL_RULES)
    if context.exit_tools:
        lines.append(_EXIT_RULES)
    return "\n".join([*lines, _FALLBACK])
