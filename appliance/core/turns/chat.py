"""Chat completions for a run: an engine's answer read as events, and several turns written as one answer.

Formats read: OpenAI's chat completions, llama-server's (b11434) and those of servers like it, streamed or whole, even
from a faulty engine. Records that cannot be read are passed over, up to a limit.

Written is OpenAI's form. The program's own additions are in a member ``appliance``: in a stream on a chunk whose delta
is empty, which every client must accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from appliance.core.bodies.sse import Decoder, RecordTooLong, SseEvent, encode
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import (
    NULL,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatUsage,
    ToolCall,
    error_text,
    tool_call,
)
from appliance.core.turns.messages import (
    CallDelta,
    ModelCall,
    Outcome,
    ReasoningDelta,
    RunEvent,
    TextDelta,
    Trace,
    TurnEnded,
    TurnFailed,
    TurnUsage,
)

DONE = "[DONE]"
MAX_GARBAGE = 20
"""Number of unreadable records that one stream may have; with more, it is not an engine's stream."""
SHOWN = 200
"""Number of characters quoted from unreadable data."""


_chunk = msgspec.json.Decoder(ChatCompletion).decode
_LAST_RECORD = encode(SseEvent("[DONE]"))


class ChatEvents:
    """Reads one answer. ``ended`` is its one TurnEnded or TurnFailed; nothing follows that."""

    def __init__(self) -> None:
        self.ended: TurnEnded | TurnFailed | None = None
        self._decoder = Decoder()
        self._answer = _TurnAnswer()
        self._garbage = 0

    def feed(self, data: bytes) -> list[RunEvent]:
        """Return the events in these bytes of the event stream."""
        events: list[RunEvent] = []
        try:
            for event in self._decoder.feed(data):
                self._on_record(event, events)
        except RecordTooLong as error:
            self._end(events, _failure(f"the engine's stream cannot be read: {error}"))
        return events

    def close(self) -> list[RunEvent]:
        """End a stream that was closed properly. Its last record may lack the empty line behind it."""
        events = self.feed(b"\n\n")
        finish_reason = self._answer.finish_reason
        if finish_reason is not None:
            self._end(events, TurnEnded(finish_reason=finish_reason))
        why = "the engine closed its stream before the answer ended"
        self._end(events, TurnFailed(reason="server_died", detail=why))
        return events

    def whole(self, body: bytes) -> list[RunEvent]:
        """Return the events of an answer that is not a stream."""
        events: list[RunEvent] = []
        try:
            chunk = _chunk(body)
        except UNREADABLE:
            chunk = ChatCompletion()
        self._take(chunk, events)
        if not chunk.choices:
            self._end(events, _failure(f"the engine's answer is not a chat completion: {_quoted(body)}"))
        self._end(events, TurnEnded(finish_reason=self._answer.finish_reason or ""))
        return events

    def refused(self, status: int, body: bytes) -> list[RunEvent]:
        """Return the events of a request that the engine refused."""
        events: list[RunEvent] = []
        self._end(events, _failure(f"the engine answered {status}: {error_text(body) or 'without a reason'}"))
        return events

    def _on_record(self, event: SseEvent, events: list[RunEvent]) -> None:
        if self.ended is not None:
            return
        if event.data.strip() == DONE:
            self._end(events, TurnEnded(finish_reason=self._answer.finish_reason or ""))
            return
        if event.name == "error":
            self._end(events, _reported(event.data.encode()))
            return
        try:
            chunk = _chunk(event.data)
        except UNREADABLE:
            self._garbage += 1
            if self._garbage > MAX_GARBAGE:
                self._end(events, _failure(f"the engine's stream cannot be read: {event.data[:SHOWN]!r}"))
            return
        self._take(chunk, events)

    def _take(self, chunk: ChatCompletion, events: list[RunEvent]) -> None:
        if chunk.error != NULL:
            self._end(events, _reported(bytes(chunk.error)))
        else:
            self._answer.add(chunk, events.append)

    def _end(self, events: list[RunEvent], last: TurnEnded | TurnFailed) -> None:
        if self.ended is None:
            self.ended = last
            events.append(last)


def _reported(error: bytes) -> TurnFailed:
    return _failure(f"the engine reported an error: {error_text(error) or 'without a reason'}")


def _failure(detail: str) -> TurnFailed:
    return TurnFailed(reason="unknown_error", detail=detail)


def _quoted(body: bytes) -> str:
    return body[:SHOWN].decode("utf-8", "replace").strip()


class _TurnAnswer:
    """The content of one answer so far. Of several choices only the first counts."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._thought = self._said = self._called = False  # in deltas
        self._indexes: list[tuple[int, str]] = []  # of each call so far: the index that the server gave it, its id

    def add(self, chunk: ChatCompletion, tell: Callable[[RunEvent], None]) -> None:
        for choice in chunk.choices or ():
            if choice.index:
                continue
            if choice.delta is not None:
                self._delta(choice.delta, tell)
            if choice.message is not None:
                self._whole(choice.message, tell)
            self.finish_reason = choice.finish_reason or self.finish_reason
        if chunk.usage is not None:
            prompt, completion = chunk.usage.prompt_tokens or 0, chunk.usage.completion_tokens or 0
            tell(TurnUsage(prompt_tokens=prompt, completion_tokens=completion))

    def _delta(self, delta: ChatMessage, tell: Callable[[RunEvent], None]) -> None:
        if thought := delta.thoughts:
            self._thought = True
            tell(ReasoningDelta(thought))
        if text := delta.text:
            self._said = True
            tell(TextDelta(text))
        for piece in delta.tool_calls or ():
            self._called = True
            tell(_call(self._index(piece), piece))

    def _whole(self, message: ChatMessage, tell: Callable[[RunEvent], None]) -> None:
        """Take a complete message; parts that came earlier as deltas do not count again."""
        if message.thoughts and not self._thought:
            tell(ReasoningDelta(message.thoughts))
        if message.text and not self._said:
            tell(TextDelta(message.text))
        if not self._called:
            for index, piece in enumerate(message.tool_calls or ()):
                tell(_call(index, piece))

    def _index(self, piece: ToolCall) -> int:
        """Return which call the piece belongs to.

        Servers differ: some give no index, some give all calls the index 0, some give a call another id in each piece.
        A name begins another call if the index or the id says so, or if there is neither.
        """
        given = piece.index
        known = [n for n, (index, _) in enumerate(self._indexes) if given is None or index == given]
        other = bool(piece.id) and all(self._indexes[n][1] not in ("", piece.id) for n in known)
        begins = bool(piece.function.name) and (other or (given is None and not piece.id))
        if known and not begins:
            return known[-1]
        self._indexes.append((len(self._indexes) if given is None else given, piece.id or ""))
        return len(self._indexes) - 1


def _call(index: int, piece: ToolCall) -> CallDelta:
    function = piece.function
    return CallDelta(index=index, id=piece.id or "", name=function.name or "", arguments=function.argument_text)


class ToolActivity(Struct, frozen=True, kw_only=True):
    """A report about tools while an answer streams: exactly one of the two is set."""

    tool_call: ModelCall | UnsetType = UNSET
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
        return self._chunk(ChatMessage(role="assistant", content=None))

    def text(self, text: str) -> bytes:
        return self._chunk(ChatMessage(content=text))

    def reasoning(self, text: str) -> bytes:
        return self._chunk(ChatMessage(reasoning_content=text))

    def activity(self, activity: ToolActivity) -> bytes:
        return self._chunk(ChatMessage(), appliance=activity)

    def end(self, outcome: Outcome, *, with_usage: bool) -> bytes:
        """Return the last records. ``with_usage``: the client asked for a chunk that has only the usage."""
        calls = _calls(outcome.pending_tool_calls)
        usage = _tokens(outcome.usage)
        records = [self._chunk(ChatMessage(tool_calls=calls))] if calls else []
        last = {} if with_usage else {"usage": usage}
        records.append(self._chunk(ChatMessage(), _finish_reason(outcome), appliance=_use(outcome), **last))
        if with_usage:
            records.append(self._record({"choices": [], "usage": usage}))
        return b"".join([*records, _LAST_RECORD])

    def whole(self, outcome: Outcome, text: str) -> bytes:
        calls = _calls(outcome.pending_tool_calls)
        message = ChatMessage(
            role="assistant",
            content=text or (None if calls else ""),
            reasoning_content=outcome.reasoning or None,
            tool_calls=calls or None,
        )
        choice = ChatChoice(index=0, message=message, finish_reason=_finish_reason(outcome))
        body = self._head | {"object": "chat.completion", "choices": [choice], "usage": _tokens(outcome.usage)}
        return msgspec.json.encode(body | {"appliance": _use(outcome)})

    def _chunk(self, delta: ChatMessage, finish_reason: str | None = None, **more: object) -> bytes:
        return self._record({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more})

    def _record(self, body: dict[str, object]) -> bytes:
        whole = self._head | {"object": "chat.completion.chunk"} | body
        return encode(SseEvent(msgspec.json.encode(whole).decode()))


def _finish_reason(outcome: Outcome) -> str:
    if outcome.pending_tool_calls:
        return "tool_calls"
    return "length" if outcome.finish_reason == "max_tokens" else "stop"


def _calls(calls: Sequence[ModelCall]) -> list[ToolCall]:
    return [tool_call(call.id, call.name, call.arguments, index) for index, call in enumerate(calls)]


def _tokens(usage: TurnUsage) -> ChatUsage:
    return ChatUsage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


def _use(outcome: Outcome) -> ToolUse:
    return ToolUse(
        tool_trace=outcome.tool_trace,
        tool_iterations_used=outcome.tool_iterations_used,
        tool_iterations_left=outcome.tool_iterations_left,
    )
