"""The calls of one turn: each one's tool, the check of its arguments, and the answers as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec
from msgspec import Raw, Struct

from appliance.core.runs import AskClient, Call, RunCommand, RunTools, Tool
from appliance.core.schema_check import ArgumentCheck
from appliance.core.turn import Written


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
