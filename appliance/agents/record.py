"""The facts about a run, and the two forms in which they are reported: its progress, and its result. Unix seconds."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct

from appliance.core.runs.messages import Call, FailReason, FinishReason, Outcome, RunState, Signal, Trace, Usage


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
