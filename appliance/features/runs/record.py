"""The facts about a run, in two forms: its progress and its result; the events of one that runs; one that has ended.

Times are Unix seconds. The events are a server-sent stream that can be read from any offset that is still held. A run
that has ended may be of a program before this one.

Limits on runs are here, too: slots, a bounded queue and a lock after too many restarts for each model, and time for
turns. A turn has three clocks: connect, head and silence. They do not count queueing and loading.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
import trio
from msgspec import Raw, Struct, convert, structs

from appliance import errors
from appliance.core.answers.ring import Ring
from appliance.core.bodies.sse import PING, Dialect, ErrorInfo, SseEvent, encode, error_record
from appliance.core.config.additions import RunsConfig
from appliance.core.headers import EVENTS
from appliance.core.runs.inward import ProgressWatch
from appliance.core.turns import messages
from appliance.replay.generation import Generation, GenerationEnd, GenerationHead, GenerationReader
from appliance.upstream.connect import ConnectFailed


class RunTimeouts(Struct, frozen=True):  # in seconds
    connect: float
    headers: float
    stall: float


Phase = Literal["waiting", "connect", "headers", "stall"]


class Clocks(ProgressWatch):
    """Cancels ``scope`` when a phase takes too long; the `Watch` of the turn's request."""

    def __init__(self, limits: RunTimeouts, admit: Callable[[str | None], int | None]) -> None:
        self.scope = trio.CancelScope()
        self.phase: Phase = "waiting"
        self.model: str | None = None  # the model whose process answers; None while the turn waits, and for a peer's
        self.pid: int | None = None
        self.status: int | None = None  # the answer's status, once its head has come
        self.condemned: str | None = None  # the reason why the process was ended under this turn
        self._limits = limits
        self._admit = admit

    def granted(self, model: str | None) -> None:
        """Raises WorkerFailed if runs on this model are refused."""
        self.pid = self._admit(model)
        self.model = model
        self._begin("connect", self._limits.connect)

    def connected(self) -> None:
        self._begin("headers", self._limits.headers)

    def received(self) -> None:
        """The head, or any byte behind it, has come."""
        self._begin("stall", self._limits.stall)

    def stop(self) -> None:
        """Nothing is expected any more."""
        self.scope.deadline = math.inf

    def _begin(self, phase: Phase, seconds: float) -> None:
        self.phase = phase
        self.scope.deadline = trio.current_time() + seconds

    def overdue(self) -> messages.TurnFailed:
        """Return the meaning of the scope's end."""
        limits = self._limits
        match self.phase:
            case "headers":
                return _failed("headers_timeout", f"the engine's answer did not begin within {limits.headers:g} s")
            case "stall":
                return _failed("stall_timeout", f"the engine sent nothing for {limits.stall:g} s")
            case "connect" | "waiting":
                return _failed("connect_failed", f"there was no connection to the engine within {limits.connect:g} s")

    def failure(self, error: errors.ApplianceError, *, stopped: bool) -> messages.TurnFailed | messages.CancelAsked:
        """Return the meaning of a request's error for the run. ``stopped``: the process was ended on purpose."""
        if self.condemned is not None:
            return _failed("worker_restarted", f"the engine was restarted: {self.condemned}")
        match error:
            case ConnectFailed():
                return _failed("connect_failed", str(error))
            case errors.PeerFailed() if self.phase == "connect":
                return _failed("connect_failed", str(error))
            case errors.UpstreamFailed() if stopped:
                return _failed("worker_restarted", f"the engine was stopped on request: {error}")
            case errors.UpstreamFailed() | errors.PeerFailed() | errors.ModelFailedToStart() | errors.KillsEngines():
                return _failed("server_died", str(error))
            case errors.ModelUnloaded() | errors.ShuttingDown() | errors.WorkerFailed():
                return _failed("worker_restarted", str(error))
            case errors.RequestCancelled():
                return messages.CancelAsked(str(error))
            case _:
                return _failed("unknown_error", str(error))


def _failed(reason: messages.FailReason, detail: str) -> messages.TurnFailed:
    return messages.TurnFailed(reason=reason, detail=detail)


WorkerState = Literal["running", "ready", "failed", "stopped"]


class WorkerStatus(Struct, frozen=True):
    """One model as runs see it: its process is running, ready, stopped, or failed too often."""

    model: str
    state: WorkerState
    slots: int
    running: int
    waiting: int
    restarts: int  # within the window
    detail: str | None = None


class ModelRuns:
    """The runs of one model. Synchronous: no decision waits."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.running: set[str] = set()
        self.waiting: deque[str] = deque()
        self.failure: errors.WorkerFailed | None = None
        self._restarts: deque[float] = deque()
        self._last: object = None
        self._faulty: int | None = None
        self._faults = 0

    def enter(self, run: str, settings: RunsConfig) -> bool:
        """Take a slot, or else a place in the queue: False. Raises NoSlotAvailable and WorkerFailed."""
        self.check()
        if len(self.running) < settings.slots and not self.waiting:
            self.running.add(run)
            return True
        if len(self.waiting) >= settings.queue:
            raise errors.NoSlotAvailable(self.model, len(self.running), len(self.waiting))
        self.waiting.append(run)
        return False

    def leave(self, run: str) -> None:
        """Give back a slot, or a place in the queue."""
        self.running.discard(run)
        if run in self.waiting:
            self.waiting.remove(run)

    def next(self, slots: int) -> str | None:
        """Give a free slot to the run that has waited longest."""
        if not self.waiting or len(self.running) >= slots:
            return None
        run = self.waiting.popleft()
        self.running.add(run)
        return run

    def check(self) -> None:
        """Raises WorkerFailed."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def restarts(self, now: float, window: float) -> int:
        while self._restarts and self._restarts[0] <= now - window:
            self._restarts.popleft()
        return len(self._restarts)

    def restarted(self, process: object, now: float, settings: RunsConfig) -> bool:
        """Note the end of ``process``; runs that shared it count once. Returns True for one restart too many."""
        if process is not None and process == self._last:
            return False
        self._last = process
        self._restarts.append(now)
        return self.restarts(now, settings.restart_window) > settings.max_restarts

    def faulted(self, pid: int, settings: RunsConfig) -> bool:
        """Note an answer of a living process that nobody can use. Returns True for one too many in a row."""
        self._faults = self._faults + 1 if pid == self._faulty else 1
        self._faulty = pid
        return 0 < settings.max_faults <= self._faults

    def answered(self) -> None:
        """An answer was of use: faults before it count no more."""
        self._faults = 0

    def reset(self) -> None:
        self.failure = None
        self._faults = 0
        self._restarts.clear()


class RunRecord(Struct, frozen=True, kw_only=True):
    """Everything about a run, but of its task only the model and the beginning of the prompt; this is stored."""

    id: str
    model: str
    worker: str
    prompt: str = ""  # the beginning of the user's last message
    outcome: messages.Outcome
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
        traces = ((trace.arguments, trace.result or "", trace.error or "") for trace in self.outcome.tool_trace)
        return said + signals + sum(len(text) for trace in traces for text in trace)


class PendingCall(Struct, frozen=True, kw_only=True):
    """A call that waits for the caller."""

    id: str
    name: str
    arguments: Raw


class RunStatus(Struct, frozen=True, kw_only=True):
    id: str
    model: str
    prompt: str
    state: messages.RunState
    fail_reason: messages.FailReason | None
    detail: str | None
    finish_reason: messages.FinishReason | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    bytes_received: int
    chars_received: int
    last_byte_at: float | None
    tool_iterations_used: int
    tool_iterations_left: int
    usage: messages.TurnUsage
    signals: tuple[messages.Signal, ...]
    pending_tool_calls: tuple[PendingCall, ...]


class RunTimes(Struct, frozen=True):
    created_at: float
    started_at: float | None
    finished_at: float | None
    seconds: float | None  # seconds from the start to the end


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run, final or so far."""

    id: str
    model: str
    state: messages.RunState
    finish_reason: messages.FinishReason | None
    fail_reason: messages.FailReason | None
    detail: str | None
    output: str
    reasoning: str
    signals: tuple[messages.Signal, ...]
    tool_trace: tuple[messages.Trace, ...]
    usage: messages.TurnUsage
    timings: RunTimes


View = TypeVar("View", RunStatus, RunResult)


def given_up(outcome: messages.Outcome, reason: messages.FailReason, detail: str) -> messages.Outcome:
    """Return the outcome of a run that has ended for a reason outside its loop."""
    return structs.replace(
        outcome, state="failed", finish_reason="failed", fail_reason=reason, detail=detail, pending_tool_calls=()
    )


def status_of(record: RunRecord) -> RunStatus:
    return _view(RunStatus, record, pending_tool_calls=tuple(map(pending_call, record.outcome.pending_tool_calls)))


def result_of(record: RunRecord) -> RunResult:
    started, finished = record.started_at, record.finished_at
    seconds = finished - started if started is not None and finished is not None else None
    return _view(RunResult, record, timings=RunTimes(record.created_at, started, finished, seconds))


def _view(kind: type[View], record: RunRecord, **more: object) -> View:
    """Take the fields of the same names from the record and its outcome."""
    return convert(structs.asdict(record.outcome) | structs.asdict(record) | more, kind)


def pending_call(call: messages.ModelCall) -> PendingCall:
    """Its arguments have been checked to be JSON."""
    return PendingCall(id=call.id, name=call.name, arguments=Raw(call.arguments.encode()))


class _Nobody:
    """The keeper of a generation that only its run holds."""

    def began(self, generation: Generation) -> None: ...
    def grew(self, generation: Generation, data: bytes, held: int) -> None: ...
    def ended(self, generation: Generation) -> None: ...


_LOST = "this reader is slower than runs.eventBytes allows, so events are lost; the run's result has all output"
_OVERRUN = ErrorInfo(message=_LOST, type="invalid_request_error", code=400, param="from", reason="invalid_request")


class Feed:
    """The events of one run, the newest ``limit`` bytes of them; any number of readers, none of which slows it down."""

    def __init__(self, run_id: str, began: float, limit: int) -> None:
        self.ring = Ring(limit)
        self._generation = Generation(run_id, began, self.ring, _Nobody())
        self._generation.head = GenerationHead(200, ((b"Content-Type", EVENTS),))
        self._generation.overrun = error_record(Dialect.OPENAI, _OVERRUN)

    def say(self, name: str, value: object) -> None:
        self._generation.keep(encode(SseEvent(msgspec.json.encode(value).decode(), name)))

    def ping(self) -> None:
        """Send a comment, which shows proxies that the stream lives. It counts in offsets, because readers read it."""
        self._generation.keep(PING)

    def end(self) -> None:
        self._generation.finish(GenerationEnd.DONE)

    async def wait_said(self) -> None:
        """Wait until something is added, or the stream ends."""
        await self._generation.changed.park()

    def reader(self, offset: int) -> GenerationReader:
        return self._generation.reader(offset)


class EndedFeed(Feed):
    """The one event that is left of an earlier program's run: its end. Offsets of the first stream also lead there."""

    def __init__(self, record: RunRecord, limit: int) -> None:
        super().__init__(record.id, record.created_at, limit)
        self.say("end", status_of(record))
        self.end()

    def reader(self, offset: int) -> GenerationReader:
        return super().reader(offset if offset == self.ring.total else 0)


class PastRun:
    """``feed`` is None for a run of an earlier program."""

    def __init__(self, record: RunRecord, feed: Feed | None, event_bytes: int) -> None:
        self.id = record.id
        self.feed = feed or EndedFeed(record, event_bytes)
        self._record = record

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self._record.size + self.feed.ring.held

    def record(self) -> RunRecord:
        return self._record
