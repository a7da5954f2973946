"""The facts about a run, in two forms: its progress and its result; the events of one that runs; one that has ended.

Times are Unix seconds. The events are a server-sent stream that can be read from any offset that is still held. A run
that has ended may be of a program before this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct

from appliance.core.answers.ring import Ring
from appliance.core.bodies.sse import PING, Event, encode
from appliance.core.parts import EVENTS
from appliance.core.runs.messages import Call, FailReason, FinishReason, Outcome, RunState, Signal, Trace, Usage
from appliance.streams.generation import End, Generation, Head, Reader


class RunRecord(Struct, frozen=True, kw_only=True):
    """Everything about a run except its task; this is stored."""

    id: str
    model: str
    worker: str
    outcome: Outcome
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    bytes_received: int = 0
    chars_received: int = 0
    last_byte_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.outcome.state in ("completed", "failed", "canceled")

    @property
    def size(self) -> int:
        """Number of characters in texts, calls and answers."""
        said = len(self.outcome.output) + len(self.outcome.reasoning)
        signals = sum(len(signal.raw) + len(signal.arguments) for signal in self.outcome.signals)
        return said + signals + sum(_size_of(trace) for trace in self.outcome.tool_trace)


class PendingCall(Struct, frozen=True, kw_only=True):
    """A call that waits for the caller."""

    id: str
    name: str
    arguments: Raw


class RunStatus(Struct, frozen=True, kw_only=True):
    """The progress of a run."""

    id: str
    model: str
    state: RunState
    fail_reason: FailReason | None
    detail: str | None
    finish_reason: FinishReason | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    bytes_received: int
    chars_received: int
    last_byte_at: float | None
    tool_iterations_used: int
    tool_iterations_left: int
    signals: tuple[Signal, ...]
    pending_tool_calls: tuple[PendingCall, ...]


class Timings(Struct, frozen=True, kw_only=True):
    created_at: float
    started_at: float | None
    finished_at: float | None
    seconds: float | None
    """Seconds from the start to the end."""


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run, final or so far."""

    id: str
    model: str
    state: RunState
    finish_reason: FinishReason | None
    fail_reason: FailReason | None
    detail: str | None
    output: str
    reasoning: str
    signals: tuple[Signal, ...]
    tool_trace: tuple[Trace, ...]
    usage: Usage
    timings: Timings


def _size_of(trace: Trace) -> int:
    texts = [text for text in (trace.result, trace.error) if text is not UNSET]
    return len(trace.arguments) + sum(map(len, texts))


def status_of(record: RunRecord) -> RunStatus:
    outcome = record.outcome
    return RunStatus(
        id=record.id,
        model=record.model,
        state=outcome.state,
        fail_reason=outcome.fail_reason,
        detail=outcome.detail,
        finish_reason=outcome.finish_reason,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        bytes_received=record.bytes_received,
        chars_received=record.chars_received,
        last_byte_at=record.last_byte_at,
        tool_iterations_used=outcome.tool_iterations_used,
        tool_iterations_left=outcome.tool_iterations_left,
        signals=outcome.signals,
        pending_tool_calls=tuple(pending_call(call) for call in outcome.pending_tool_calls),
    )


def result_of(record: RunRecord) -> RunResult:
    outcome, started, finished = record.outcome, record.started_at, record.finished_at
    return RunResult(
        id=record.id,
        model=record.model,
        state=outcome.state,
        finish_reason=outcome.finish_reason,
        fail_reason=outcome.fail_reason,
        detail=outcome.detail,
        output=outcome.output,
        reasoning=outcome.reasoning,
        signals=outcome.signals,
        tool_trace=outcome.tool_trace,
        usage=outcome.usage,
        timings=Timings(
            created_at=record.created_at,
            started_at=started,
            finished_at=finished,
            seconds=finished - started if started is not None and finished is not None else None,
        ),
    )


def pending_call(call: Call) -> PendingCall:
    """Its arguments have been checked to be JSON."""
    return PendingCall(id=call.id, name=call.name, arguments=Raw(call.arguments.encode()))


class _Nobody:
    """The keeper of a generation that only its run holds."""

    def began(self, generation: Generation) -> None:
        pass

    def grew(self, generation: Generation, data: bytes, held: int) -> None:
        pass

    def ended(self, generation: Generation) -> None:
        pass


class Feed:
    """The events of one run, the newest ``limit`` bytes of them; any number of readers, none of which slows it down."""

    def __init__(self, run_id: str, began: float, limit: int) -> None:
        self._generation = Generation(run_id, began, Ring(limit), _Nobody())
        self._generation.head = Head(200, ((b"Content-Type", EVENTS),))

    def say(self, name: str, value: object) -> None:
        self._generation.keep(encode(Event(msgspec.json.encode(value).decode(), name)))

    def ping(self) -> None:
        """Send a comment, which shows proxies that the stream lives. It counts in offsets, because readers read it."""
        self._generation.keep(PING)

    def end(self) -> None:
        """End the stream."""
        self._generation.finish(End.DONE)

    async def wait_said(self) -> None:
        """Wait until something is added, or the stream ends."""
        await self._generation.changed.park()

    @property
    def held(self) -> int:
        """Number of bytes held."""
        return self._generation.ring.held

    @property
    def total(self) -> int:
        """Number of bytes so far."""
        return self._generation.ring.total

    @property
    def dropped(self) -> int:
        """The first offset that is still held."""
        return self._generation.ring.dropped

    def reader(self, offset: int) -> Reader:
        return self._generation.reader(offset)


class RetoldFeed(Feed):
    """The known events of an earlier program's run, written anew: fewer and other bytes than at first.

    An offset is valid here if a record begins there. An offset that only the first stream had gets the last record
    alone.
    """

    def __init__(self, run_id: str, began: float, limit: int, events: Sequence[tuple[str, object]]) -> None:
        super().__init__(run_id, began, limit)
        self._begins: list[int] = []
        for name, value in events:
            self._begins.append(self.total)
            self.say(name, value)
        self.end()

    def reader(self, offset: int) -> Reader:
        known = offset == self.total or offset in self._begins
        return super().reader(offset if known else self._begins[-1])


class PastRun:
    """``feed`` is None for a run of an earlier program, whose events are then written anew, as far as they are
    known.
    """

    def __init__(self, record: RunRecord, feed: Feed | None, event_bytes: int) -> None:
        self.id = record.id
        self.feed = feed or RetoldFeed(record.id, record.created_at, event_bytes, list(_retold(record)))
        self._record = record

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self._record.size + self.feed.held

    def record(self) -> RunRecord:
        return self._record


def _retold(record: RunRecord) -> Iterator[tuple[str, object]]:
    """The order of text between two calls is unknown: reasoning and output are one piece each. So are the tools'
    owners.
    """
    outcome = record.outcome
    if outcome.reasoning:
        yield "reasoning", {"text": outcome.reasoning}
    for trace in outcome.tool_trace:
        yield "tool_call", {"id": trace.id, "name": trace.name, "arguments": trace.arguments}
        told = {"error": trace.error} if trace.error is not UNSET else {"result": trace.result}
        yield "tool_result", {"id": trace.id, "seconds": trace.seconds} | told
    for signal in outcome.signals:
        yield "signal", signal
    if outcome.output:
        yield "output", {"text": outcome.output}
    yield "end", status_of(record)
