"""The engine's input for each turn of a run: the BIOS, the prompt stack, tools and the caller's parameters.

The BIOS is the program's own system message: it tells the model the time, its tools and the rest of its budget. Its
layout is stable, and its first line names the version. A model may repeat all of it: it holds no secret. To models
without a call format of their own it explains one, *directives*, which `DirectiveReader` reads:

    ```tool_call
    {"tool": "read_file", "arguments": {"path": "notes.txt"}}
    ```

The fence opens at the start of a line and ends with the first line that ends in three backticks; inside valid JSON no
line can. Nothing else is a call: not JSON by itself, not JSON in any other fence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.runs.messages import Call, Task

MARK = "```tool_call"
FENCE = "```"

_OPENING = re.compile(r"^ {0,3}```tool_call(?![\w-])", re.MULTILINE)
_INDENT = 3
_CLOSING = re.compile(r"```[ \t\r]*$", re.MULTILINE)


class Directive(Struct, frozen=True, kw_only=True):
    """One call. ``arguments`` is JSON text; ``raw`` is the fence with all of its content."""

    tool: str
    arguments: str
    raw: str


class Reading(Struct, frozen=True, kw_only=True):
    """The result of a turn that may have directives. ``problem`` says why one of them cannot be read."""

    text: str
    """The text that was held back, without the directives."""
    raw: str
    """The text that was held back, unchanged."""
    directives: tuple[Directive, ...] = ()
    problem: str | None = None


class _Written(Struct):
    tool: str
    arguments: Raw = Raw(b"{}")


_decode = msgspec.json.Decoder(_Written).decode


class DirectiveReader:
    """Passes text on as it comes, except for possible directives: it holds back everything from the first one on.

    The held text is decided when the turn has ended, because structured calls turn directives into ordinary text.
    """

    def __init__(self) -> None:
        self._line: str = ""  # the line at hand, while it may still become an opening
        self._mid_line = False
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self._held:
            self._held.append(text)
            return ""
        if self._mid_line and "\n" not in text:
            return text
        text = self._line + text
        first_line = text.find("\n") + 1 if self._mid_line else 0
        opening = _OPENING.search(text, first_line)
        last_line = max(text.rfind("\n") + 1, first_line)
        if opening is not None and opening.end() < len(text):
            shown = text[: opening.start()]
            self._held.append(text[opening.start() :])
            self._line = ""
        elif _may_open(text, last_line):
            shown, self._line = text[:last_line], text[last_line:]
            self._mid_line = False
        else:
            shown, self._line = text, ""
            self._mid_line = True
        return shown

    def release(self) -> str:
        """Return all held text, as ordinary text after all."""
        held = "".join((self._line, *self._held))
        self._line = ""
        self._held.clear()
        return held

    def end(self) -> Reading:
        """End the turn and read the held text."""
        raw = self.release()
        text: list[str] = []
        directives: list[Directive] = []
        at = 0
        while (opening := _OPENING.search(raw, at)) is not None:
            closing = _CLOSING.search(raw, opening.end())
            body_end, end = (closing.start(), closing.end()) if closing else (len(raw), len(raw))
            try:
                written = _decode(raw[opening.end() : body_end].encode())
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                return Reading(text=raw, raw=raw, problem=f"a call written as text cannot be read: {what}")
            arguments = bytes(written.arguments).decode()
            directives.append(Directive(tool=written.tool, arguments=arguments, raw=raw[opening.start() : end]))
            text.append(raw[at : opening.start()])
            at = end + (raw[end : end + 1] == "\n")
        text.append(raw[at:])
        return Reading(text="".join(text), raw=raw, directives=tuple(directives))


def _may_open(text: str, start: int) -> bool:
    """True if the text at ``start`` is the beginning of an opening, or an opening whose next character is not here
    yet.
    """
    if len(text) - start > _INDENT + len(MARK):
        return False
    line = text[start:]
    mark = line.lstrip(" ")
    return len(line) - len(mark) <= _INDENT and MARK.startswith(mark)


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


class _System(Struct):
    content: str
    role: str = "system"


class _CallFunction(Struct):
    name: str
    arguments: str


class _CallMade(Struct):
    id: str
    function: _CallFunction
    type: str = "function"


class _Assistant(Struct):
    content: str
    tool_calls: list[_CallMade]
    reasoning_content: str | UnsetType = UNSET
    role: str = "assistant"


class _Result(Struct):
    tool_call_id: str
    content: str
    role: str = "tool"


class _Function(Struct):
    name: str
    description: str
    parameters: Raw


class _Tool(Struct):
    function: _Function
    type: str = "function"


class Prompt:
    """The conversation of one run as it grows."""

    def __init__(self, task: Task, *, worker: str, zone: tzinfo) -> None:
        self._task = task
        self._worker = worker
        self._zone = zone
        self._messages = list(task.messages)
        self._tools = [
            _Tool(_Function(name=tool.name, description=tool.description, parameters=tool.parameters))
            for tool in task.tools
        ]

    def body(self, now: float, iterations_left: int) -> bytes:
        """Return the next request. ``now`` is in seconds since the epoch."""
        task = self._task
        messages: list[object] = [*self._messages]
        if task.bios:
            messages.insert(0, _System(bios_text(self._context(now, iterations_left))))
        body: dict[str, object] = {"stream_options": {"include_usage": True}, **self._params()}
        body |= {"model": task.model, "messages": messages, "stream": True}
        if self._tools:
            body |= {"tools": self._tools, "parallel_tool_calls": task.parallel_tool_calls}
        return msgspec.json.encode(body)

    def answered(self, text: str, reasoning: str, calls: Sequence[Call], results: Mapping[str, str]) -> None:
        """Add the turn that made ``calls``, and their results: each call is answered."""
        made = [_CallMade(call.id, _CallFunction(call.name, call.arguments)) for call in calls]
        assistant = _Assistant(text, made, reasoning or UNSET)
        answers = [_Result(call.id, results[call.id]) for call in calls]
        self._messages += [Raw(msgspec.json.encode(message)) for message in (assistant, *answers)]

    def _params(self) -> dict[str, Raw]:
        """The caller's parameters. A ``tool_choice`` that demands a call applies to the first turn only, or the run
        would never end.
        """
        params = self._task.params
        first = len(self._messages) == len(self._task.messages)
        if first or bytes(params.get("tool_choice", b'"auto"')).strip() in (b'"auto"', b'"none"'):
            return params
        return {name: value for name, value in params.items() if name != "tool_choice"}

    def _context(self, now: float, iterations_left: int) -> BiosContext:
        return BiosContext(
            now=datetime.fromtimestamp(now, self._zone),
            worker=self._worker,
            tools=tuple(tool.name for tool in self._task.tools if tool.runner != "exit"),
            exit_tools=tuple(tool.name for tool in self._task.tools if tool.runner == "exit"),
            iterations_left=iterations_left,
        )
