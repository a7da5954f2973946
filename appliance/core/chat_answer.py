"""Writes chat completions in OpenAI's form: one answer for a request that took several turns.

Source: OpenAI API reference, "Chat completions". The program's own additions are in a member ``appliance``: in a stream
on a chunk whose delta is empty, which every client must accept.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from appliance.core.runs import Call, Outcome, Trace, Usage
from appliance.core.sse import Event, encode

DONE = encode(Event("[DONE]"))


class _Function(Struct):
    name: str
    arguments: str


class _ToolCall(Struct):
    index: int
    id: str
    function: _Function
    type: str = "function"


class _Said(Struct, omit_defaults=True):
    """A delta, or the whole message."""

    role: str = ""
    content: str | None = ""
    reasoning_content: str = ""
    tool_calls: list[_ToolCall] = []


class _Tokens(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ToolActivity(Struct, frozen=True, kw_only=True):
    """A report about tools while an answer streams: exactly one of the two is set."""

    tool_call: Call | UnsetType = UNSET
    tool_result: Trace | UnsetType = UNSET


class ToolUse(Struct, frozen=True, kw_only=True):
    """The report about tools at the end."""

    tool_trace: Sequence[Trace]
    tool_iterations_used: int
    tool_iterations_left: int


class ChatAnswer:
    """Writes one answer. ``created`` is in seconds since the epoch."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self._head = {"id": answer_id, "created": created, "model": model}

    def begin(self) -> bytes:
        return self._chunk(_Said(role="assistant", content=None))

    def text(self, text: str) -> bytes:
        return self._chunk(_Said(content=text))

    def reasoning(self, text: str) -> bytes:
        return self._chunk(_Said(reasoning_content=text))

    def activity(self, activity: ToolActivity) -> bytes:
        return self._chunk(_Said(), appliance=activity)

    def end(self, outcome: Outcome, *, with_usage: bool) -> bytes:
        """Return the last records. ``with_usage``: the client asked for a chunk that has only the usage."""
        calls = _calls(outcome.pending_tool_calls)
        usage = _tokens(outcome.usage)
        records = [self._chunk(_Said(tool_calls=calls))] if calls else []
        last = {} if with_usage else {"usage": usage}
        records.append(self._chunk(_Said(), _finish_reason(outcome), appliance=_use(outcome), **last))
        if with_usage:
            records.append(self._record({"choices": [], "usage": usage}))
        return b"".join([*records, DONE])

    def whole(self, outcome: Outcome, text: str) -> bytes:
        calls = _calls(outcome.pending_tool_calls)
        message = _Said(
            role="assistant",
            content=text or (None if calls else ""),
            reasoning_content=outcome.reasoning,
            tool_calls=calls,
        )
        told = msgspec.to_builtins(message) | {"content": message.content}
        choice = {"index": 0, "message": told, "finish_reason": _finish_reason(outcome)}
        body = self._head | {"object": "chat.completion", "choices": [choice], "usage": _tokens(outcome.usage)}
        return msgspec.json.encode(body | {"appliance": _use(outcome)})

    def _chunk(self, delta: _Said, finish_reason: str | None = None, **more: object) -> bytes:
        return self._record({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more})

    def _record(self, body: dict[str, object]) -> bytes:
        whole = self._head | {"object": "chat.completion.chunk"} | body
        return encode(Event(msgspec.json.encode(whole).decode()))


def _finish_reason(outcome: Outcome) -> str:
    if outcome.pending_tool_calls:
        return "tool_calls"
    return "length" if outcome.finish_reason == "max_tokens" else "stop"


def _calls(calls: Sequence[Call]) -> list[_ToolCall]:
    return [
        _ToolCall(index=index, id=call.id, function=_Function(call.name, call.arguments))
        for index, call in enumerate(calls)
    ]


def _tokens(usage: Usage) -> _Tokens:
    return _Tokens(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


def _use(outcome: Outcome) -> ToolUse:
    return ToolUse(
        tool_trace=outcome.tool_trace,
        tool_iterations_used=outcome.tool_iterations_used,
        tool_iterations_left=outcome.tool_iterations_left,
    )
