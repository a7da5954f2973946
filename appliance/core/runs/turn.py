"""One turn of the model in a run: its text, its calls and its cost, put together from the deltas; then its calls
answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec
from msgspec import Raw, Struct

from appliance.core.runs.messages import AskClient, Call, CallDelta, RunCommand, RunTools, Tool, Usage
from appliance.core.runs.prompt import DirectiveReader, Reading
from appliance.core.tools.schema_check import ArgumentCheck


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


class Written(Struct, frozen=True, kw_only=True):
    """A call in the model's spelling, not yet examined. ``id`` is "" if the model gave none."""

    id: str
    name: str
    arguments: str
    raw: str


class _Pieces(Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Turn:
    """Collects the deltas of one turn."""

    def __init__(self, *, reads_directives: bool, line_limit: int) -> None:
        self.usage = Usage()
        self._reader = DirectiveReader() if reads_directives else None
        self._repeats = (LineRepeats(line_limit), LineRepeats(line_limit)) if line_limit else None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Pieces] = {}

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
        call = self._calls.setdefault(piece.index, _Pieces())
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

    def structured(self) -> list[Written]:
        """Return the structured calls, in the order of their index; an entry without a name is not a call."""
        calls: list[Written] = []
        for _, call in sorted(self._calls.items(), key=lambda entry: entry[0]):
            arguments = "".join(call.arguments)
            if call.name or arguments.strip():
                calls.append(Written(id=call.id, name=call.name, arguments=arguments, raw=arguments))
        return calls

    def written(self) -> Reading:
        """Read the held text; none of it is shown yet. Call this once, at the turn's end."""
        return Reading(text="", raw="") if self._reader is None else self._reader.end()


class Judged(Struct, frozen=True, kw_only=True):
    """A call with its tool, or with its mistake. Its arguments are checked only if it has none."""

    call: Call
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

    def judge(self, written: Iterable[Written]) -> list[Judged]:
        return [self._one(call) for call in written]

    def runner(self, call: Call) -> str:
        return self._tools[call.name].runner

    def _one(self, written: Written) -> Judged:
        arguments = written.arguments if written.arguments.strip() else "{}"
        call = Call(id=self._unique(written.id), name=written.name, arguments=arguments, raw=written.raw)
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
    """Calls on their way to their answers: in order, or all at once.

    In order, neighbours with the same runner begin together; the runner keeps their order.
    """

    def __init__(self, calls: Sequence[Call], judge: Judge, *, parallel: bool) -> None:
        self.calls = tuple(calls)
        self.results: dict[str, str] = {}
        self._judge = judge
        self._parallel = parallel
        self._waves = [list(calls)] if parallel else [list(wave) for _, wave in groupby(calls, judge.runner)]
        self._waiting: dict[str, Call] = {}

    @property
    def done(self) -> bool:
        return not self._waves and not self._waiting

    @property
    def pending(self) -> tuple[Call, ...]:
        """Return the calls that the caller has to execute now."""
        return tuple(call for call in self._waiting.values() if self._judge.runner(call) == "client")

    @property
    def unanswered(self) -> list[Call]:
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

    def take(self, call_id: str) -> Call:
        """Note that a call is answered, successfully or not."""
        return self._waiting.pop(call_id)


def as_json(arguments: str) -> Raw:
    """Return JSON text as it is; anything else as a JSON string."""
    raw = arguments.encode(errors="replace")
    try:
        return Raw(bytes(msgspec.json.decode(raw, type=Raw)))
    except (msgspec.DecodeError, RecursionError):
        return Raw(msgspec.json.encode(raw.decode()))
