"""One run: its loop's decisions, its results so far, and its watchers. Everything here happens at once."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import assert_never

import trio
from msgspec import Struct, structs

from appliance.agents.clocks import Clocks, Limits
from appliance.agents.feed import Feed
from appliance.agents.record import RunRecord, pending_call, status_of
from appliance.core.runs.messages import (
    AskClient,
    Call,
    CancelAsked,
    FailReason,
    Finish,
    Generate,
    Outcome,
    ReasoningDelta,
    RunCommand,
    RunEvent,
    RunTools,
    ShowReasoning,
    ShowSignal,
    ShowText,
    StopGenerating,
    Task,
    TextDelta,
    ToolFinished,
)
from appliance.core.runs.toolloop import Loop


class Asked(Struct, frozen=True, kw_only=True):
    """A requested run. ``worker`` is the model whose slots it takes: the id behind the name in the task."""

    task: Task
    worker: str
    limits: Limits


class Run:
    """Owned by `Agents`, which carries out ``todo`` in a task of its own."""

    def __init__(self, run_id: str, asked: Asked, event_bytes: int) -> None:
        self.id = run_id
        self.asked = asked
        self.scope = trio.CancelScope()
        self.todo: deque[Generate | RunTools | AskClient] = deque()
        self.clocks: Clocks | None = None
        """The clocks of the current turn."""
        self.over = False
        self.changes = 0
        """Counts events; whoever saves the run compares it."""
        self.answered = trio.lowlevel.ParkingLot()
        """Woken by every answer to a call."""
        self.created_at = time.time()
        self.feed = Feed(run_id, self.created_at, event_bytes)
        self._loop = Loop(asked.task, worker=asked.worker, zone=datetime.now().astimezone().tzinfo or UTC)
        self._forced: Outcome | None = None
        self._asked_at: dict[str, float] = {}
        self._started_at: float | None = None
        self._finished_at: float | None = None
        self._bytes = 0
        self._chars = 0
        self._last_byte_at: float | None = None
        self._state = ""

    def start(self) -> None:
        self._started_at = time.time()
        self._carry_out(self._loop.begin(self._started_at))

    def hear(self, event: RunEvent) -> bool:
        """Pass an event to the loop. False: the current turn is of no use any more."""
        if isinstance(event, TextDelta | ReasoningDelta):
            self._chars += len(event.text)
        return self._carry_out(self._loop.hear(event, time.time()))

    def received(self, count: int) -> None:
        """Count bytes of an answer."""
        self._bytes += count
        self._last_byte_at = time.time()
        self.changes += 1

    def cancel(self) -> None:
        """Cancel the run. It has ended when this returns; its task notices later."""
        if not self.over:
            self.hear(CancelAsked())
            self.scope.cancel()

    def give_up(self, reason: FailReason, detail: str) -> None:
        """End it for a reason outside the loop."""
        if not self.over:
            self._forced = structs.replace(
                self._loop.outcome(),
                state="failed",
                finish_reason="failed",
                fail_reason=reason,
                detail=detail,
                pending_tool_calls=(),
            )
            self._finish()

    def pending(self) -> tuple[Call, ...]:
        """Return the calls that wait for the caller."""
        return () if self.over else self._loop.outcome().pending_tool_calls

    def answer(self, call_id: str, content: str, failure: str | None) -> None:
        """Take the caller's result of a pending call."""
        seconds = time.time() - self._asked_at.get(call_id, time.time())
        self.tool_finished(ToolFinished(call_id=call_id, content=content, failure=failure, seconds=round(seconds, 6)))

    def tool_finished(self, event: ToolFinished) -> None:
        said = {"id": event.call_id, "seconds": event.seconds}
        told = {"error": event.failure} if event.failure is not None else {"result": event.content}
        self.feed.say("tool_result", said | told)
        self.hear(event)
        self.answered.unpark_all()

    def record(self) -> RunRecord:
        return RunRecord(
            id=self.id,
            model=self.asked.task.model,
            worker=self.asked.worker,
            outcome=self._forced or self._loop.outcome(),
            created_at=self.created_at,
            started_at=self._started_at,
            finished_at=self._finished_at,
            bytes_received=self._bytes,
            chars_received=self._chars,
            last_byte_at=self._last_byte_at,
        )

    def _carry_out(self, commands: list[RunCommand]) -> bool:
        """Carry out immediate commands; the rest is left to the owner. Returns True if the run goes on."""
        goes_on = not self.over
        for command in commands:
            match command:
                case Generate() | RunTools() | AskClient():
                    self._announce(command)
                    self.todo.append(command)
                case StopGenerating():
                    goes_on = False
                case ShowText(text):
                    self.feed.say("output", {"text": text})
                case ShowReasoning(text):
                    self.feed.say("reasoning", {"text": text})
                case ShowSignal(signal):
                    self.feed.say("signal", signal)
                case Finish():
                    self._finish()
                    goes_on = False
                case _:
                    assert_never(command)
        self.changes += 1
        return goes_on

    def _announce(self, command: Generate | RunTools | AskClient) -> None:
        state = "running" if isinstance(command, Generate) else "tool_running"
        if state != self._state:
            self._state = state
            self.feed.say("state", {"state": state})
        if not isinstance(command, Generate):
            runner = "server" if isinstance(command, RunTools) else "caller"
            for call in command.calls:
                self._asked_at[call.id] = time.time()
                shown = pending_call(call)
                told = {"id": call.id, "name": call.name, "arguments": shown.arguments, "runner": runner}
                self.feed.say("tool_call", told)

    def _finish(self) -> None:
        self.over = True
        self.todo.clear()
        self._finished_at = time.time()
        self.feed.say("end", status_of(self.record()))
        self.feed.end()
        self.answered.unpark_all()
