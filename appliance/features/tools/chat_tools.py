"""A chat whose tools are used here: the model's turns, the tools between them, and one answer of all.

The ``appliance`` member of a chat request names tools of this server, used on behalf of a plain client:

    {"model": ..., "messages": [...], "appliance": {"tools": ["read_file", "mcp:*"], "max_iterations": 8}}

The model is asked as often as it calls such tools; the client sees one answer. Functions of the client's own stay its
own: a turn that calls one ends the answer as always. The member never reaches an engine.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Annotated, assert_never

import msgspec
import trio
from msgspec import Meta, Raw, Struct, structs

from appliance.core.answers.families import Family, family_of
from appliance.core.bodies.head import EXTENSION
from appliance.core.bodies.json_text import JsonEdit, Path, PathStep, apply_edits
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import FunctionDefinition, ToolDefinition
from appliance.core.tools.box import ToolSpec
from appliance.core.turns import messages
from appliance.core.turns.chat import ChatAnswer, ChatEvents, ToolActivity
from appliance.core.turns.toolloop import Loop
from appliance.errors import BadRequest, Forbidden, ToolLoopFailed
from appliance.features.tools.box import OpenToolbox
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import AskModel, ModelRequest
from appliance.http.way.handover import HandoverReply, answered
from appliance.http.way.progress import sending
from appliance.http.way.tool_use import use_each, use_tool
from appliance.traffic.request import send_whole

_NEEDLE = f'"{EXTENSION}"'.encode()
_PATH = Path((PathStep(EXTENSION.encode()),))
_OWNED = frozenset((EXTENSION, "model", "messages", "tools", "stream", "stream_options", "parallel_tool_calls", "n"))
"""Members of the request that the loop says itself, for each of its turns."""
MAX_ANSWER = 64 << 20  # bytes of one turn's answer that is not a stream


class WantedTools(Struct, forbid_unknown_fields=True):
    """The member."""

    tools: list[str] = []
    max_iterations: Annotated[int, Meta(ge=0, le=messages.MAX_ITERATIONS)] = 8


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Chat(Struct):
    model: str
    messages: list[Raw]
    tools: list[ToolDefinition] | None = None
    parallel_tool_calls: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    stream: bool | None = None


class ToolChat(Struct, frozen=True, kw_only=True):
    """A chat request whose tools are used here."""

    task: messages.Task
    stream: bool
    include_usage: bool


_members = msgspec.json.Decoder(dict[str, Raw]).decode
_wanted = msgspec.json.Decoder(WantedTools | None).decode
_chat = msgspec.json.Decoder(_Chat).decode


def read_tool_chat(body: bytes, route: str, toolbox: OpenToolbox, *, honoured: bool) -> tuple[bytes, ToolChat | None]:
    """The body without the member, and the chat if it asks for tools. Raises BadRequest, Forbidden.

    ``honoured``: False for the program's own requests, whose member is taken out and means nothing.
    """
    if _NEEDLE not in body:
        return body, None
    try:
        members = _members(body)
    except UNREADABLE:
        return body, None  # the engine says what is wrong with it
    if EXTENSION not in members:
        return body, None
    plain = apply_edits(body, (JsonEdit(_PATH),))
    if EXTENSION in _members(plain):
        raise BadRequest(f"'{EXTENSION}' is there twice; say it once", param=EXTENSION)
    if not honoured:
        return plain, None
    if family_of(route) is not Family.CHAT:
        raise BadRequest(f"'{EXTENSION}' is for /v1/chat/completions; {route} has no tools", param=EXTENSION)
    try:
        wanted = _wanted(members[EXTENSION])
    except msgspec.ValidationError as error:
        form = '{"tools": [...], "max_iterations": 8}'
        raise BadRequest(f"'{EXTENSION}' cannot be used: {error}; it looks like {form}", param=EXTENSION) from None
    if wanted is None or not wanted.tools:
        return plain, None
    if not toolbox.enabled:
        raise Forbidden("tools are switched off; start the server with --tools or --mcp-servers-config")
    return plain, _read_chat(plain, members, wanted, toolbox)


def _read_chat(body: bytes, members: dict[str, Raw], wanted: WantedTools, toolbox: OpenToolbox) -> ToolChat:
    try:
        chat = _chat(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body cannot be used with tools of this server: {error}") from None
    if chat.n not in (None, 1):
        raise BadRequest("'n' must be 1 where tools of this server are used", param="n")
    task = messages.Task(
        model=chat.model,
        messages=tuple(chat.messages),
        tools=(
            *(_tool(spec, ours=True) for spec in toolbox.select(wanted.tools)),
            *(_tool(each.function, ours=False) for each in chat.tools or ()),
        ),
        params={name: value for name, value in members.items() if name not in _OWNED},
        max_tool_iterations=wanted.max_iterations,
        parallel_tool_calls=bool(chat.parallel_tool_calls),
        bios=False,
        hands_over=True,
    )
    names = [tool.name for tool in task.tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"two tools are called '{twice}'; name the function differently", param="tools")
    include_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    return ToolChat(task=task, stream=bool(chat.stream), include_usage=include_usage)


def _tool(told: ToolSpec | FunctionDefinition, *, ours: bool) -> messages.Tool:
    """Arguments for a tool of ours are any object: the tool itself reports a mistake to the model."""
    return messages.Tool(
        name=told.name,
        description=told.description,
        parameters=told.parameters,
        runner="server" if ours else "client",
        arguments="object" if ours else "any",
    )


Give = Callable[[bytes], Awaitable[None]]


async def answer_chat(
    toolbox: OpenToolbox, timeout: float, ping_after: float, chat: ToolChat, job: ModelRequest, ask: AskModel
) -> None:
    """Do ``ask`` once for each turn. Raises what that does, and ToolLoopFailed.

    ``timeout`` says how many seconds one use of a tool may take.
    """
    turns = _Turns(toolbox, timeout, ask, job, chat)
    if chat.stream:
        await _stream(turns, job, ping_after)
    else:
        await _whole(turns, job)


class _Turns:
    """One request: its loop, and what carries it out."""

    def __init__(self, toolbox: OpenToolbox, timeout: float, ask: AskModel, job: ModelRequest, chat: ToolChat) -> None:
        self.answer = ChatAnswer(f"chatcmpl-{secrets.token_hex(16)}", int(time.time()), chat.task.model)
        self.include_usage = chat.include_usage
        self.text: list[str] = []
        self._toolbox = toolbox
        self._timeout = timeout
        self._ask = ask
        self._job = job
        self._task = chat.task
        self._loop = Loop(chat.task)
        self._todo: deque[messages.Generate | messages.RunTools] = deque()
        self._over = False
        self._new_turn = False  # nothing has been said in it yet

    async def run(self, give: Give, refuse: Callable[[HandoverReply], Awaitable[None]]) -> messages.Outcome | None:
        """``give`` gets the records of a stream. None: the engine would not take the first turn, and `refuse` has it.

        Raises what the asking raises, and ToolLoopFailed.
        """
        first = True
        await self._carry_out(self._loop.begin(time.time()), give)
        while self._todo:
            match self._todo.popleft():
                case messages.Generate(body=body):
                    async with answered(self._ask, structs.replace(self._job, body=body)) as reply:
                        if first and reply.status != 200:
                            await refuse(reply)
                            return None
                        if first:
                            await give(self.answer.begin())
                        await self._listen(reply, give)
                    first = False
                case messages.RunTools(calls=calls, parallel=parallel):
                    await self._use(calls, give, parallel=parallel)
        end = self._loop.outcome()
        if end.state != "completed":
            raise ToolLoopFailed(self._task.model, end.detail or end.state)
        return end

    async def _listen(self, reply: HandoverReply, give: Give) -> None:
        """One turn, to the end of its answer: its lease is given back then, before any tool is used."""
        self._new_turn = True
        events = ChatEvents()
        if reply.status != 200:
            await self._on_events(events.refused(reply.status, await reply.read(MAX_ANSWER)), give)
        elif not reply.event_stream:
            await self._on_events(events.whole(await reply.read(MAX_ANSWER)), give)
        else:
            while data := await reply.receive():
                await self._on_events(events.feed(data), give)
            await self._on_events(events.close(), give)

    async def _on_events(self, events: list[messages.RunEvent], give: Give) -> None:
        for event in events:
            await self._carry_out(self._loop.on_event(event, time.time()), give)

    async def _carry_out(self, commands: list[messages.RunCommand], give: Give) -> None:
        for command in commands:
            match command:
                case messages.Generate() | messages.RunTools():
                    self._todo.append(command)
                case messages.ShowText(text):
                    if self._new_turn and self.text and not self.text[-1].endswith("\n"):
                        text = f"\n\n{text}"  # the texts of two turns are paragraphs
                    self._new_turn = False
                    self.text.append(text)
                    await give(self.answer.text(text))
                case messages.ShowReasoning(text):
                    await give(self.answer.reasoning(text))
                case messages.Finish():
                    self._over = True
                    self._todo.clear()
                case messages.StopGenerating() | messages.ShowSignal() | messages.AskClient():
                    pass  # no line limit, no exit tools, and calls of the client's functions end the run
                case _:
                    assert_never(command)

    async def _use(self, calls: tuple[messages.ModelCall, ...], give: Give, *, parallel: bool) -> None:
        async def use(call: messages.ModelCall) -> bool:
            if self._over:
                return False
            await give(self.answer.activity(ToolActivity(tool_call=call)))
            step = self._job.record.begin_step("tool", call.name)
            finished = await use_tool(self._toolbox, call, self._timeout)
            step.ended = time.perf_counter()
            if self._over:
                return False
            if finished.failure is not None:  # the model may know another way
                told = f"error: {finished.failure}"
                finished = messages.ToolFinished(call_id=call.id, content=told, seconds=finished.seconds)
            commands = self._loop.on_event(finished, time.time())
            await give(self.answer.activity(ToolActivity(tool_result=self._loop.outcome().tool_trace[-1])))
            await self._carry_out(commands, give)
            return not self._over

        await use_each(calls, use, parallel=parallel)


async def _whole(turns: _Turns, job: ModelRequest) -> None:
    async def give(_: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def refuse(reply: HandoverReply) -> None:
        job.sink.start(reply.status, reply.headers)
        await job.sink.write(await reply.read(MAX_ANSWER))
        await job.sink.end()

    end = await turns.run(give, refuse)
    if end is not None:
        await send_whole(job.sink, 200, (JSON_TYPE,), turns.answer.whole(end, "".join(turns.text)))


async def _stream(turns: _Turns, job: ModelRequest, ping_after: float) -> None:
    """Run the model and the client each in a task, so that the client gets a sign of life when tools take long."""
    async with sending(job.sink, ping_after) as sender:

        async def refuse(reply: HandoverReply) -> None:
            await sender.refuse(reply, MAX_ANSWER, job.route.dialect)

        end = await turns.run(sender.send, refuse)
        if end is not None:
            await sender.send(turns.answer.end(end, with_usage=turns.include_usage))
