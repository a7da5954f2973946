"""One turn of the model in a run: what it is given, then its text, calls and cost, put together from the deltas.

The engine's input for each turn comes first: the BIOS (see `core.turns.bios`), the prompt stack, tools and the caller's
parameters. To models without a call format of their own the BIOS explains one, *directives*, which `DirectiveReader`
reads:

    ```tool_call
    {"tool": "read_file", "arguments": {"path": "notes.txt"}}
    ```
The fence opens at the start of a line and ends with the first line that ends in three backticks; inside valid JSON no
line can. Nothing else is a call: not JSON by itself, not JSON in any other fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import groupby

import msgspec
from msgspec import Raw, Struct

from appliance.core.bodies.schema_check import ArgumentCheck
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import ChatMessage, FunctionDefinition, ToolDefinition, tool_call
from appliance.core.turns.bios import MARK, BiosContext, bios_of
from appliance.core.turns.messages import AskClient, CallDelta, ModelCall, RunCommand, RunTools, Task, Tool, TurnUsage

_OPENING = re.compile(r"^ {0,3}```tool_call(?![\w-])", re.MULTILINE)
_INDENT = 3
_CLOSING = re.compile(r"```[ \t\r]*$", re.MULTILINE)


class WrittenCall(Struct, frozen=True, kw_only=True):
    """A call in the model's spelling, not yet examined. ``id`` is "" if the model gave none.

    ``arguments`` is text; ``raw`` is, for one in plain text, the fence with all of its content.
    """

    id: str = ""
    name: str
    arguments: str
    raw: str


class DirectiveReading(Struct, frozen=True, kw_only=True):
    """The result of a turn that may have directives. ``problem`` says why one of them cannot be read."""

    text: str
    """The text that was held back, without the directives."""
    raw: str
    """The text that was held back, unchanged."""
    directives: tuple[WrittenCall, ...] = ()
    problem: str | None = None


class _WrittenDirective(Struct):
    tool: str
    arguments: Raw = Raw(b"{}")


_decode = msgspec.json.Decoder(_WrittenDirective).decode


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

    def end(self) -> DirectiveReading:
        """End the turn and read the held text."""
        raw = self.release()
        text: list[str] = []
        directives: list[WrittenCall] = []
        at = 0
        while (opening := _OPENING.search(raw, at)) is not None:
            closing = _CLOSING.search(raw, opening.end())
            body_end, end = (closing.start(), closing.end()) if closing else (len(raw), len(raw))
            try:
                written = _decode(raw[opening.end() : body_end].encode())
            except UNREADABLE as error:
                what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                return DirectiveReading(text=raw, raw=raw, problem=f"a call written as text cannot be read: {what}")
            arguments = bytes(written.arguments).decode()
            directives.append(WrittenCall(name=written.tool, arguments=arguments, raw=raw[opening.start() : end]))
            text.append(raw[at : opening.start()])
            at = end + (raw[end : end + 1] == "\n")
        text.append(raw[at:])
        return DirectiveReading(text="".join(text), raw=raw, directives=tuple(directives))


def _may_open(text: str, start: int) -> bool:
    """True if an opening begins at ``start``, whole or as far as its characters are here."""
    if len(text) - start > _INDENT + len(MARK):
        return False
    line = text[start:]
    mark = line.lstrip(" ")
    return len(line) - len(mark) <= _INDENT and MARK.startswith(mark)


class RunPrompt:
    """The conversation of one run as it grows."""

    def __init__(self, task: Task, *, worker: str, zone: tzinfo) -> None:
        self._task = task
        self._worker = worker
        self._zone = zone
        self._bios = bios_of(task.bios)
        self._messages = list(task.messages)
        self._tools = [
            ToolDefinition(FunctionDefinition(tool.name, tool.description, tool.parameters)) for tool in task.tools
        ]

    def body(self, now: float, iterations_left: int) -> bytes:
        """Return the next request. ``now`` is in seconds since the epoch."""
        task = self._task
        messages: list[object] = [*self._messages]
        if self._bios is not None:
            messages.insert(0, ChatMessage(role="system", content=self._bios(self._context(now, iterations_left))))
        body: dict[str, object] = {"stream_options": {"include_usage": True}, **self._params()}
        body |= {"model": task.model, "messages": messages, "stream": True}
        if self._tools:
            body |= {"tools": self._tools, "parallel_tool_calls": task.parallel_tool_calls}
        return msgspec.json.encode(body)

    def answered(self, text: str, reasoning: str, calls: Sequence[ModelCall], results: Mapping[str, str]) -> None:
        """Add the turn that made ``calls``, and their results: each call is answered."""
        made = [tool_call(call.id, call.name, call.arguments) for call in calls]
        assistant = ChatMessage(role="assistant", content=text, reasoning_content=reasoning or None, tool_calls=made)
        answers = [ChatMessage(role="tool", tool_call_id=call.id, content=results[call.id]) for call in calls]
        self._messages += [Raw(msgspec.json.encode(message)) for message in (assistant, *answers)]

    def _params(self) -> dict[str, Raw]:
        """The caller's parameters. A ``tool_choice`` that demands a call is for the first turn only."""
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


class LineRepeats:
    """Counts how often the same line came in a row. Empty lines, and blanks around a line, are ignored."""

    def __init__(self, limit: int) -> None:
        """``limit`` is the number of repetitions that is too many."""
        self._limit = limit
        self._line: list[str] = []
        self._last = ""
        self._times = 0
        self.found: str | None = None
        """The line that came too often."""

    def feed(self, text: str) -> None:
        if self.found is not None:
            return
        first, *others = text.split("\n")
        self._line.append(first)
        for piece in others:
            self._ended("".join(self._line).strip())
            self._line = [piece]

    def _ended(self, line: str) -> None:
        if not line:
            return
        self._times = self._times + 1 if line == self._last else 1
        self._last = line
        if self._times >= self._limit and self.found is None:
            self.found = line


class _CallPieces(Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class ModelTurn:
    """Collects the deltas of one turn."""

    def __init__(self, *, reads_directives: bool, line_limit: int) -> None:
        self.usage = TurnUsage()
        self._reader = DirectiveReader() if reads_directives else None
        self._repeats = (LineRepeats(line_limit), LineRepeats(line_limit)) if line_limit else None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallPieces] = {}

    @property
    def text(self) -> str:
        """The part of the text that has been shown."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def say(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self._repeats is not None:
            self._repeats[0].feed(text)
        return self.show(text if self._reader is None else self._reader.feed(text))

    def think(self, text: str) -> None:
        if self._repeats is not None:
            self._repeats[1].feed(text)
        self._reasoning.append(text)

    def call(self, piece: CallDelta) -> str:
        """Return the text that this frees: if calls are structured, the text contains none."""
        call = self._calls.setdefault(piece.index, _CallPieces())
        call.id = call.id or piece.id
        if piece.name != call.name:  # some servers repeat the whole name in every piece
            call.name += piece.name
        call.arguments.append(piece.arguments)
        freed = self.release()
        self._reader = None
        return freed

    def show(self, text: str) -> str:
        """Note that ``text`` is shown; returns it."""
        if text:
            self._text.append(text)
        return text

    def release(self) -> str:
        """Show the held text, as ordinary text after all."""
        return self.show("" if self._reader is None else self._reader.release())

    @property
    def repeated_line(self) -> str | None:
        """The line that came too often."""
        found = [repeats.found for repeats in self._repeats or () if repeats.found is not None]
        return found[0] if found else None

    def structured(self) -> list[WrittenCall]:
        """Return the structured calls, in the order of their index; an entry without a name is not a call."""
        calls: list[WrittenCall] = []
        for _, call in sorted(self._calls.items(), key=lambda entry: entry[0]):
            arguments = "".join(call.arguments)
            if call.name or arguments.strip():
                calls.append(WrittenCall(id=call.id, name=call.name, arguments=arguments, raw=arguments))
        return calls

    def written(self) -> DirectiveReading:
        """Read the held text; none of it is shown yet. Call this once, at the turn's end."""
        return DirectiveReading(text="", raw="") if self._reader is None else self._reader.end()


class Judged(Struct, frozen=True, kw_only=True):
    """A call with its tool, or with its mistake. Its arguments are checked only if it has none."""

    call: ModelCall
    tool: Tool | None
    problem: str | None = None

    @property
    def runner(self) -> str:
        return "" if self.tool is None else self.tool.runner


class Judge:
    """Knows the tools of a run, and the ids of its calls: no two calls have the same id."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._checks: dict[str, ArgumentCheck] = {}
        self._ids: set[str] = set()
        self._number = 0

    def judge(self, written: Iterable[WrittenCall]) -> list[Judged]:
        return [self._one(call) for call in written]

    def runner(self, call: ModelCall) -> str:
        return self._tools[call.name].runner

    def _one(self, written: WrittenCall) -> Judged:
        arguments = written.arguments if written.arguments.strip() else "{}"
        call = ModelCall(id=self._unique(written.id), name=written.name, arguments=arguments, raw=written.raw)
        tool = self._tools.get(written.name)
        if tool is None:
            offered = ", ".join(self._tools) or "none"
            return Judged(call=call, tool=None, problem=f"there is no tool {written.name!r}; offered are: {offered}")
        why = self._check_of(tool).problem(arguments) if tool.arguments != "any" else None
        problem = None if why is None else f"the arguments of a call to '{tool.name}' cannot be used: {why}"
        return Judged(call=call, tool=tool, problem=problem)

    def _check_of(self, tool: Tool) -> ArgumentCheck:
        if tool.name not in self._checks:
            fits_all = tool.arguments == "object"
            self._checks[tool.name] = ArgumentCheck(b"{}" if fits_all else bytes(tool.parameters))
        return self._checks[tool.name]

    def _unique(self, given: str) -> str:
        name = given
        while not name or name in self._ids:
            self._number += 1
            name = f"call_{self._number}"
        self._ids.add(name)
        return name


class Round:
    """Calls on their way to their answers, all at once or in order; neighbours with the same runner begin together."""

    def __init__(self, calls: Sequence[ModelCall], judge: Judge, *, parallel: bool) -> None:
        self.calls = tuple(calls)
        self.results: dict[str, str] = {}
        self._judge = judge
        self._parallel = parallel
        self._waves = [list(calls)] if parallel else [list(wave) for _, wave in groupby(calls, judge.runner)]
        self._waiting: dict[str, ModelCall] = {}

    @property
    def done(self) -> bool:
        return not self._waves and not self._waiting

    @property
    def pending(self) -> tuple[ModelCall, ...]:
        """Return the calls that the caller has to execute now."""
        return tuple(call for call in self._waiting.values() if self._judge.runner(call) == "client")

    @property
    def unanswered(self) -> list[ModelCall]:
        return [*self._waiting.values(), *(call for wave in self._waves for call in wave)]

    def waits_for(self, call_id: str) -> bool:
        return call_id in self._waiting

    def begin_next(self) -> list[RunCommand]:
        """Return the next calls, if none is under way."""
        if self._waiting or not self._waves:
            return []
        wave = self._waves.pop(0)
        self._waiting = {call.id: call for call in wave}
        ours = tuple(call for call in wave if self._judge.runner(call) == "server")
        theirs = tuple(call for call in wave if self._judge.runner(call) == "client")
        commands: list[RunCommand] = [RunTools(calls=ours, parallel=self._parallel)] if ours else []
        return [*commands, AskClient(calls=theirs)] if theirs else commands

    def take(self, call_id: str) -> ModelCall:
        """Note that a call is answered, successfully or not."""
        return self._waiting.pop(call_id)


def as_json(arguments: str) -> Raw:
    """Return JSON text as it is; anything else as a JSON string."""
    raw = arguments.encode(errors="replace")
    try:
        return Raw(bytes(msgspec.json.decode(raw, type=Raw)))
    except UNREADABLE:
        return Raw(msgspec.json.encode(raw.decode()))
