"""Answering a chat whose tools are used here: the model's turns, the tools between them, and one answer of all."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import assert_never

import trio
from msgspec import structs

from appliance.agents.use import MAX_PARALLEL, use_tool
from appliance.core.runs.chat import ChatAnswer, ChatEvents, ToolActivity, refusal
from appliance.core.runs.messages import (
    AskClient,
    Call,
    Finish,
    Generate,
    Outcome,
    RunCommand,
    RunEvent,
    RunTools,
    ShowReasoning,
    ShowSignal,
    ShowText,
    StopGenerating,
    ToolFinished,
)
from appliance.core.runs.toolloop import Loop
from appliance.errors import ToolLoopFailed
from appliance.http.chat.tool_chat import ToolChat, read_tool_chat
from appliance.http.errors import JSON_TYPE
from appliance.http.way.handover import Reply, answered
from appliance.http.way.job import Ask, Job
from appliance.http.way.sending import sending
from appliance.tools.box import Toolbox
from appliance.traffic.sink import send_whole

MAX_ANSWER = 64 << 20
"""Bytes of one turn's answer that is not a stream."""

Give = Callable[[bytes], Awaitable[None]]


class ToolChats:
    """Asks a model, with tools where the request wants them. ``timeout`` tells how many seconds one use may take."""

    def __init__(self, toolbox: Toolbox, timeout: Callable[[], float], ping_after: float) -> None:
        self._toolbox = toolbox
        self._timeout = timeout
        self._ping_after = ping_after

    def read(self, job: Job) -> tuple[Job, ToolChat | None]:
        """The request without its member of ours, and the chat where it wants tools. Raises BadRequest, Forbidden."""
        body, chat = read_tool_chat(job.body, job.route.name, self._toolbox, honoured=not job.request.inward)
        return job if body is job.body else structs.replace(job, body=body), chat

    async def run(self, chat: ToolChat, job: Job, ask: Ask) -> None:
        """Do ``ask`` once for each turn. Raises what it does, and ToolLoopFailed."""
        turns = _Turns(self._toolbox, self._timeout(), ask, job, chat)
        if chat.stream:
            await _stream(turns, job, self._ping_after)
        else:
            await _whole(turns, job)


class _Turns:
    """One request: its loop, and what carries it out."""

    def __init__(self, toolbox: Toolbox, timeout: float, ask: Ask, job: Job, chat: ToolChat) -> None:
        self.answer = ChatAnswer(f"chatcmpl-{secrets.token_hex(16)}", int(time.time()), chat.task.model)
        self.include_usage = chat.include_usage
        self.text: list[str] = []
        self._toolbox = toolbox
        self._timeout = timeout
        self._ask = ask
        self._job = job
        self._model = chat.task.model
        self._loop = Loop(chat.task)
        self._todo: deque[Generate | RunTools] = deque()
        self._over = False
        self._new_turn = False  # nothing has been said in it yet

    async def run(self, give: Give, refuse: Callable[[Reply], Awaitable[None]]) -> Outcome | None:
        """``give`` gets the records of a stream. None: the engine would not take the first turn, and `refuse` has it.

        Raises what the asking raises, and ToolLoopFailed.
        """
        first = True
        await self._carry_out(self._loop.begin(time.time()), give)
        while self._todo:
            match self._todo.popleft():
                case Generate(body=body):
                    async with answered(self._ask, structs.replace(self._job, body=body)) as reply:
                        if first and reply.status != 200:
                            await refuse(reply)
                            return None
                        if first:
                            await give(self.answer.begin())
                        await self._listen(reply, give)
                    first = False
                case RunTools(calls=calls, parallel=parallel):
                    await self._use(calls, give, parallel=parallel)
        end = self._loop.outcome()
        if end.state != "completed":
            raise ToolLoopFailed(self._model, end.detail or end.state)
        return end

    async def _listen(self, reply: Reply, give: Give) -> None:
        """One turn, to the end of its answer: its lease is given back then, before any tool is used."""
        self._new_turn = True
        events = ChatEvents()
        if reply.status != 200:
            await self._hear([refusal(reply.status, await reply.read(MAX_ANSWER))], give)
        elif not reply.event_stream:
            await self._hear(events.whole(await reply.read(MAX_ANSWER)), give)
        else:
            while data := await reply.receive():
                await self._hear(events.feed(data), give)
            await self._hear(events.close(), give)

    async def _hear(self, events: list[RunEvent], give: Give) -> None:
        for event in events:
            await self._carry_out(self._loop.hear(event, time.time()), give)

    async def _carry_out(self, commands: list[RunCommand], give: Give) -> None:
        for command in commands:
            match command:
                case Generate() | RunTools():
                    self._todo.append(command)
                case ShowText(text):
                    await give(self.answer.text(self._apart(text)))
                case ShowReasoning(text):
                    await give(self.answer.reasoning(text))
                case Finish():
                    self._over = True
                    self._todo.clear()
                case StopGenerating() | ShowSignal() | AskClient():
                    pass  # no line limit, no exit tools, and calls of the client's functions end the run
                case _:
                    assert_never(command)

    def _apart(self, text: str) -> str:
        """The texts of two turns are paragraphs."""
        if self._new_turn and self.text and not self.text[-1].endswith("\n"):
            text = f"\n\n{text}"
        self._new_turn = False
        self.text.append(text)
        return text

    async def _use(self, calls: tuple[Call, ...], give: Give, *, parallel: bool) -> None:
        places = trio.CapacityLimiter(MAX_PARALLEL)

        async def use(call: Call) -> None:
            async with places:
                if self._over:
                    return
                await give(self.answer.activity(ToolActivity(tool_call=call)))
                finished = await use_tool(self._toolbox, call, self._timeout)
            if finished.failure is not None:  # the model may know another way
                finished = ToolFinished(call_id=call.id, content=f"error: {finished.failure}", seconds=finished.seconds)
            if self._over:
                return
            commands = self._loop.hear(finished, time.time())
            trace = self._loop.outcome().tool_trace[-1]
            await give(self.answer.activity(ToolActivity(tool_result=trace)))
            await self._carry_out(commands, give)

        if parallel:
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(use, call)
        else:
            for call in calls:
                await use(call)


async def _whole(turns: _Turns, job: Job) -> None:
    async def give(_: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def refuse(reply: Reply) -> None:
        job.sink.start(reply.status, reply.headers)
        await job.sink.write(await reply.read(MAX_ANSWER))
        await job.sink.end()

    end = await turns.run(give, refuse)
    if end is not None:
        await send_whole(job.sink, 200, (JSON_TYPE,), turns.answer.whole(end, "".join(turns.text)))


async def _stream(turns: _Turns, job: Job, ping_after: float) -> None:
    """Run the model and the client each in a task, so that the client gets a sign of life when tools take long."""

    async with sending(job.sink, ping_after) as sender:

        async def refuse(reply: Reply) -> None:
            await sender.refuse(reply, MAX_ANSWER, job.route.dialect)

        end = await turns.run(sender.send, refuse)
        if end is not None:
            await sender.send(turns.answer.end(end, with_usage=turns.include_usage))
