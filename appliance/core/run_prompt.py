"""The engine's input for each turn of a run: prompt stack, tools, and the caller's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.bios import BiosContext, bios_text
from appliance.core.runs import Call, Task


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
