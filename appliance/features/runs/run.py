"""One run: its loop's decisions, its results so far and its watchers; and the carrying out of the loop's commands.

Commands are turns of the model (a streamed chat request, reported as it comes), tools, and waiting for the caller.
Everything in an `AgentRun` happens at once.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import Protocol, assert_never

import trio
from msgspec import Struct, structs

from appliance.core.runs.inward import Asker, InwardReply
from appliance.core.tools.box import Toolbox
from appliance.core.turns import messages
from appliance.core.turns.chat import ChatEvents
from appliance.core.turns.toolloop import Loop
from appliance.errors import ApplianceError, ModelFailedToStart
from appliance.features.runs.record import Clocks, Feed, RunRecord, RunTimeouts, given_up, pending_call, status_of
from appliance.features.runs.rules import prompt_of
from appliance.fleet.owner import Fleet
from appliance.http.way.tool_use import use_each, use_tool

CHAT = "/v1/chat/completions"
MAX_WHOLE = 64 << 20  # largest answer that is not a stream, in bytes
MAX_REFUSAL = 1 << 16
LAST_BYTES = 1.0  # seconds to read past the end of an answer, so that it is logged as a complete one


class RequestedRun(Struct, frozen=True, kw_only=True):
    """A requested run. ``worker`` is the model whose slots it takes: the id behind the name in the task."""

    task: messages.Task
    worker: str
    limits: RunTimeouts


class AgentRun:
    """Owned by `Agents`, which carries out ``todo`` in a task of its own."""

    def __init__(self, run_id: str, asked: RequestedRun, event_bytes: int) -> None:
        self.id = run_id
        self.asked = asked
        self.scope = trio.CancelScope()
        self.todo: deque[messages.Generate | messages.RunTools | messages.AskClient] = deque()
        self.clocks: Clocks | None = None  # the clocks of the current turn
        self.over = False
        self.changed = False  # since it was saved
        self.answered = trio.lowlevel.ParkingLot()  # woken by every answer to a call
        self.created_at = time.time()
        self.feed = Feed(run_id, self.created_at, event_bytes)
        self._loop = Loop(asked.task, worker=asked.worker, zone=datetime.now().astimezone().tzinfo or UTC)
        self._forced: messages.Outcome | None = None
        self._prompt = prompt_of(asked.task.messages)
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

    def on_event(self, event: messages.RunEvent) -> bool:
        """Pass an event to the loop. False: the current turn is of no use any more."""
        if isinstance(event, messages.TextDelta | messages.ReasoningDelta):
            self._chars += len(event.text)
        return self._carry_out(self._loop.on_event(event, time.time()))

    def received(self, count: int) -> None:
        self._bytes += count
        self._last_byte_at = time.time()
        self.changed = True

    def cancel(self) -> None:
        """Cancel the run. It has ended when this returns; its task notices later."""
        if not self.over:
            self.on_event(messages.CancelAsked())
            self.scope.cancel()

    def give_up(self, reason: messages.FailReason, detail: str) -> None:
        """End it for a reason outside the loop."""
        if not self.over:
            self._forced = given_up(self._loop.outcome(), reason, detail)
            self._finish()

    def pending(self) -> tuple[messages.ModelCall, ...]:
        """Return the calls that wait for the caller."""
        return () if self.over else self._loop.outcome().pending_tool_calls

    def answer(self, call_id: str, content: str, failure: str | None) -> None:
        """Take the caller's result of a pending call."""
        seconds = time.time() - self._asked_at.get(call_id, time.time())
        self.tool_finished(
            messages.ToolFinished(call_id=call_id, content=content, failure=failure, seconds=round(seconds, 6))
        )

    def tool_finished(self, event: messages.ToolFinished) -> None:
        said = {"id": event.call_id, "seconds": event.seconds}
        told = {"error": event.failure} if event.failure is not None else {"result": event.content}
        self.feed.say("tool_result", said | told)
        self.on_event(event)
        self.answered.unpark_all()

    def record(self) -> RunRecord:
        return RunRecord(
            id=self.id, model=self.asked.task.model, worker=self.asked.worker, prompt=self._prompt,
            outcome=self._forced or self._loop.outcome(), created_at=self.created_at, started_at=self._started_at,
            finished_at=self._finished_at, bytes_received=self._bytes, chars_received=self._chars,
            last_byte_at=self._last_byte_at,
        )  # fmt: skip

    def _carry_out(self, commands: list[messages.RunCommand]) -> bool:
        """Carry out immediate commands; the rest is left to the owner. Returns True if the run goes on."""
        goes_on = not self.over
        for command in commands:
            match command:
                case messages.Generate() | messages.RunTools() | messages.AskClient():
                    self._announce(command)
                    self.todo.append(command)
                case messages.StopGenerating():
                    goes_on = False
                case messages.ShowText(text):
                    self.feed.say("output", {"text": text})
                case messages.ShowReasoning(text):
                    self.feed.say("reasoning", {"text": text})
                case messages.ShowSignal(signal):
                    self.feed.say("signal", signal)
                case messages.Finish():
                    self._finish()
                    goes_on = False
                case _:
                    assert_never(command)
        self.changed = True
        return goes_on

    def _announce(self, command: messages.Generate | messages.RunTools | messages.AskClient) -> None:
        state = "running" if isinstance(command, messages.Generate) else "tool_running"
        if state != self._state:
            self._state = state
            self.feed.say("state", {"state": state})
        if not isinstance(command, messages.Generate):
            runner = "server" if isinstance(command, messages.RunTools) else "caller"
            for call in command.calls:
                self._asked_at[call.id] = time.time()
                self.feed.say("tool_call", structs.asdict(pending_call(call)) | {"runner": runner})

    def _finish(self) -> None:
        self.over = True
        self.todo.clear()
        self._finished_at = time.time()
        self.feed.say("end", status_of(self.record()))
        self.feed.end()
        self.answered.unpark_all()


async def _listen(run: AgentRun, reply: InwardReply, answer: ChatEvents, clocks: Clocks) -> None:
    """Tell the run what comes; an overdue clock shows in its scope."""
    if reply.status != 200:
        _pass_on(run, answer.refused(reply.status, await reply.read(MAX_REFUSAL)))
        return
    if not reply.event_stream:
        body = await reply.read(MAX_WHOLE)
        run.received(len(body))
        _pass_on(run, answer.whole(body))
        return
    while data := await reply.receive():
        clocks.received()
        run.received(len(data))
        wanted = _pass_on(run, answer.feed(data))
        if answer.ended is not None:
            clocks.stop()
            with trio.move_on_after(LAST_BYTES):
                while await reply.receive():
                    pass
        if answer.ended is not None or not wanted:
            return
    _pass_on(run, answer.close())


def _pass_on(run: AgentRun, events: list[messages.RunEvent]) -> bool:
    return all(run.on_event(event) for event in events)


class TurnsJudge(Protocol):
    """Says which models may have turns, by what became of earlier ones; `Agents`."""

    def admit(self, model: str | None, /) -> int | None: ...

    def trouble(self, clocks: Clocks, model: str | None, process: object, why: str, useless: bool, /) -> None: ...

    def judge(self, clocks: Clocks, why: str | None, /) -> None: ...


class Execution:
    """The tools for executing runs."""

    def __init__(self, asker: Asker, toolbox: Toolbox, fleet: Fleet, agents: TurnsJudge) -> None:
        self._asker = asker
        self._toolbox = toolbox
        self._fleet = fleet
        self._agents = agents

    async def execute(self, run: AgentRun, tool_timeout: float, caller_timeout: float) -> None:
        run.start()
        while run.todo:
            match run.todo.popleft():
                case messages.Generate(body=body):
                    await self._take_turn(run, body)
                case messages.RunTools(calls=calls, parallel=parallel):
                    await self._use(run, calls, tool_timeout, parallel=parallel)
                case messages.AskClient(calls=calls):
                    ids = {call.id for call in calls}
                    with trio.move_on_after(caller_timeout):
                        while any(call.id in ids for call in run.pending()):
                            await run.answered.park()
                    for call in run.pending():
                        if call.id in ids and not run.over:
                            run.answer(call.id, "", f"the caller gave no result within {caller_timeout:g} s")

    async def _take_turn(self, run: AgentRun, body: bytes) -> None:
        clocks = run.clocks = Clocks(run.asked.limits, self._agents.admit)
        answer = ChatEvents()
        failure: ApplianceError | None = None
        try:
            with clocks.scope:
                async with self._asker.ask(CHAT, body, origin=f"run {run.id}", watch=clocks) as reply:
                    clocks.received()
                    clocks.status = reply.status
                    await _listen(run, reply, answer, clocks)
        except ApplianceError as error:
            failure = error
        run.clocks = None
        if failure is not None and answer.ended is None:
            self._failed(run, clocks, failure)
        elif failure is None and clocks.scope.cancelled_caught and not run.over:
            overdue = clocks.overdue()
            run.on_event(overdue)
            self._agents.trouble(clocks, clocks.model, clocks.pid, overdue.detail, True)
        elif not isinstance(answer.ended, messages.TurnFailed):
            self._agents.judge(clocks, None)
        elif clocks.status is None or not 400 <= clocks.status < 500:  # those are the request's fault
            self._agents.judge(clocks, answer.ended.detail)

    def _failed(self, run: AgentRun, clocks: Clocks, error: ApplianceError) -> None:
        status = self._fleet.known(clocks.model) if clocks.model is not None else None
        replaced = status is not None and status.pid != clocks.pid
        unloading = status is None or (status.error is None and (replaced or status.state == "stopping"))
        failure = clocks.failure(error, stopped=clocks.model is not None and unloading)
        run.on_event(failure)
        if not isinstance(failure, messages.TurnFailed) or failure.reason not in ("server_died", "connect_failed"):
            return
        useless = failure.reason == "connect_failed"
        if clocks.model is None and isinstance(error, ModelFailedToStart):
            self._agents.trouble(clocks, error.model, error, failure.detail, False)
        elif useless or replaced:
            self._agents.trouble(clocks, clocks.model, clocks.pid, failure.detail, useless)
        else:
            self._agents.judge(clocks, failure.detail)

    async def _use(
        self, run: AgentRun, calls: tuple[messages.ModelCall, ...], timeout: float, *, parallel: bool
    ) -> None:
        limits = {tool.name: timeout if tool.timeout is None else tool.timeout for tool in run.asked.task.tools}

        async def use(call: messages.ModelCall) -> bool:
            if not run.over:
                finished = await use_tool(self._toolbox, call, limits[call.name])
                if not run.over:
                    run.tool_finished(finished)
            return not run.over

        await use_each(calls, use, parallel=parallel)
