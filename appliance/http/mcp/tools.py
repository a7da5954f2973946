"""Models and agent runs as tools of the program's MCP server.

Ask a model, list models, embed texts; begin a run, follow it, tell what came of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated

import msgspec
import trio
from msgspec import Meta, Raw, Struct

from appliance.agents.owner import Agents
from appliance.agents.record import result_of
from appliance.agents.run import AgentRun, RequestedRun
from appliance.core.bodies.sse import Decoder, RecordTooLong, SseEvent
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import NULL, ChatChoice, error_text
from appliance.core.runs.inward import Asker, InwardReply
from appliance.errors import BadRequest, UpstreamFailed
from appliance.http.control.run_routes import read_run
from appliance.traffic.targets import Targets

ORIGIN = "mcp"
"""The client's name in the list of requests in flight."""
MAX_ANSWER = 64 << 20
MAX_REFUSAL = 1 << 16
TELL_EVERY = 0.5
"""Seconds between two pieces of progress."""

Tell = Callable[[str], Awaitable[None]]
"""Tells the client, in words, what has happened since the last time."""
Result = dict[str, object]
"""The result of ``tools/call``."""
_OWNED = ("model", "messages", "stream", "tools", "appliance")
CHAT_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "Name of the model; 'list_models' tells them."},
        "prompt": {"type": "string", "description": "The question. Either this or 'messages'."},
        "system": {"type": "string", "description": "Instructions that go before the question."},
        "messages": {
            "type": "array",
            "description": "A whole conversation in OpenAI's form, instead of 'prompt'.",
            "items": {"type": "object"},
        },
        "max_tokens": {"type": "integer", "minimum": 1, "description": "Longest answer."},
        "temperature": {"type": "number", "minimum": 0},
        "params": {"type": "object", "description": "Further parameters of /v1/chat/completions, as top_p or seed."},
    },
    "additionalProperties": False,
}
EMBED_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "Name of an embedding model; 'list_models' tells them."},
        "input": {
            "description": "The text, or several.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        },
    },
    "required": ["input"],
    "additionalProperties": False,
}
NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}
DESCRIPTION = "Lets a language model on this machine work on a task with tools, and waits for what comes of it."


class Chat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``chat``."""

    model: str | None = None
    prompt: str = ""
    system: str = ""
    messages: list[Raw] = []
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    params: dict[str, Raw] = {}


class Embed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``embed``."""

    model: str | None = None
    input: str | list[str]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a tool that has none."""


class _Completion(Struct):
    model: str = ""
    choices: list[ChatChoice] = []
    usage: dict[str, Raw] | None = None
    error: Raw = NULL


class _Vector(Struct):
    embedding: list[float | list[float]]


class _Vectors(Struct):
    model: str = ""
    data: list[_Vector] = []
    usage: dict[str, Raw] | None = None


_COMPLETION = msgspec.json.Decoder(_Completion)
_VECTORS = msgspec.json.Decoder(_Vectors)


def text_result(text: str, structured: object = None) -> Result:
    found: Result = {"content": [{"type": "text", "text": text}]}
    return found if structured is None else found | {"structuredContent": structured}


def json_result(value: object) -> Result:
    """For programs, and the same as text for those that do not know of it."""
    return text_result(msgspec.json.encode(value).decode(), value)


def failed_result(message: str) -> Result:
    """A mistake that the caller can correct: a model reads it and tries again."""
    return {**text_result(message), "isError": True}


async def chat(asker: Asker, arguments: Chat, tell: Tell | None) -> Result:
    """Ask a model; ``tell`` gets its words as they come. Raises EngineRefused and what `Asker.ask` raises."""
    body = _chat_body(arguments, stream=tell is not None)
    async with asker.ask("/v1/chat/completions", body, origin=ORIGIN) as reply:
        await _refuse(reply)
        if tell is None or not reply.event_stream:
            found = _decoded(await reply.read(MAX_ANSWER))
            choice = found.choices[0] if found.choices else ChatChoice()
            text, reasoning = choice.said.text, choice.said.thoughts
        else:
            found, choice, text, reasoning = await _follow_answer(reply, tell)
    structured: dict[str, object] = {"model": found.model, "text": text, "finish_reason": choice.finish_reason}
    if reasoning:
        structured["reasoning"] = reasoning
    if found.usage is not None:
        structured["usage"] = found.usage
    return text_result(text, structured)


async def embed(asker: Asker, arguments: Embed) -> Result:
    """Raises EngineRefused and what `Asker.ask` raises."""
    body = {"input": arguments.input} | ({"model": arguments.model} if arguments.model else {})
    async with asker.ask("/v1/embeddings", msgspec.json.encode(body), origin=ORIGIN) as reply:
        await _refuse(reply)
        try:
            found = _VECTORS.decode(await reply.read(MAX_ANSWER))
        except UNREADABLE as error:
            raise UpstreamFailed(arguments.model or "", f"its embeddings cannot be read ({error})") from None
    vectors = [vector.embedding for vector in found.data]
    return json_result({"model": found.model, "embeddings": vectors, "usage": found.usage or {}})


def _chat_body(asked: Chat, *, stream: bool) -> bytes:
    """Raises BadRequest."""
    if bool(asked.prompt) == bool(asked.messages):
        raise BadRequest("give either 'prompt' or 'messages'", param="prompt")
    for name in _OWNED:
        if name in asked.params:
            raise BadRequest(f"'{name}' cannot be among 'params'", param="params")
    messages: list[object] = list(asked.messages) or [{"role": "user", "content": asked.prompt}]
    if asked.system:
        messages.insert(0, {"role": "system", "content": asked.system})
    body: dict[str, object] = {**asked.params, "messages": messages}
    if asked.model:
        body["model"] = asked.model
    if asked.max_tokens is not None:
        body["max_tokens"] = asked.max_tokens
    if asked.temperature is not None:
        body["temperature"] = asked.temperature
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


async def _follow_answer(reply: InwardReply, tell: Tell) -> tuple[_Completion, ChatChoice, str, str]:
    """The whole of a stream, told piece by piece."""
    decoder = Decoder()
    whole, last = _Completion(), ChatChoice()
    texts: list[str] = []
    thoughts: list[str] = []
    untold: list[str] = []
    size, due = 0, trio.current_time()
    while data := await reply.receive():
        size += len(data)
        if size > MAX_ANSWER:
            raise UpstreamFailed(whole.model, f"its answer is longer than {MAX_ANSWER} bytes")
        for part in _parts(decoder, data, whole.model):
            whole.model = part.model or whole.model
            whole.usage = part.usage or whole.usage
            for choice in part.choices[:1]:
                texts.append(choice.said.text)
                thoughts.append(choice.said.thoughts)
                untold.append(choice.said.text)
                last = choice if choice.finish_reason else last
        if trio.current_time() >= due and any(untold):
            await tell("".join(untold))
            untold.clear()
            due = trio.current_time() + TELL_EVERY
    if any(untold):
        await tell("".join(untold))
    return whole, last, "".join(texts), "".join(thoughts)


def _parts(decoder: Decoder, data: bytes, model: str) -> list[_Completion]:
    try:
        events = decoder.feed(data)
    except RecordTooLong as error:
        raise UpstreamFailed(model, str(error)) from None
    return [_decoded(event.data.encode()) for event in events if event.data != "[DONE]"]


def _decoded(body: bytes) -> _Completion:
    try:
        found = _COMPLETION.decode(body)
    except UNREADABLE as error:
        raise UpstreamFailed("", f"its answer cannot be read ({error})") from None
    if found.error != NULL:
        raise EngineRefused(error_text(found.error) or "the engine reported an error")
    return found


class EngineRefused(Exception):
    """An error in the engine's own words."""


async def _refuse(reply: InwardReply) -> None:
    if reply.status < 400:
        return
    words = error_text(await reply.read(MAX_REFUSAL))
    raise EngineRefused(words or f"the engine answered with status {reply.status}")


class RunAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``run_agent``."""

    model: str
    prompt: str
    system: str = ""
    tools: list[str] = []
    max_tool_iterations: Annotated[int, Meta(ge=0)] | None = None
    params: dict[str, Raw] = {}


class _Output(Struct):
    text: str = ""


class _Use(Struct):
    name: str = ""


def run_schema(tools: Collection[str]) -> Mapping[str, object]:
    """The arguments; ``tools`` are those that a run may be given."""
    return {
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "Name of the model; 'list_models' tells them."},
            "prompt": {"type": "string", "description": "The task."},
            "system": {"type": "string", "description": "Instructions that go before the task."},
            "tools": {
                "type": "array",
                "items": {"type": "string", **({"enum": sorted(tools)} if tools else {})},
                "description": "Tools of this machine that the model may use." if tools else "There are none.",
            },
            "max_tool_iterations": {"type": "integer", "minimum": 0, "description": "How often it may use tools."},
            "params": {"type": "object", "description": "Further parameters of /v1/chat/completions, as temperature."},
        },
        "required": ["model", "prompt"],
        "additionalProperties": False,
    }


async def run_agent(
    agents: Agents, targets: Targets, arguments: RunAgent, allowed: Collection[str], tell: Tell | None
) -> Result:
    """Run the task; a caller that stops waiting cancels the run. Raises BadRequest, and what `Agents.submit` raises."""
    for name in arguments.tools:
        if name not in allowed:
            raise BadRequest(
                f"the tool '{name}' is not for MCP clients; start the server with --mcp-server-tools {name}",
                param="tools",
            )
    task, limits = read_run(_body(arguments), agents.toolbox, agents.settings)
    worker = await targets.worker(task.model)
    run = agents.submit(RequestedRun(task=task, worker=worker, limits=limits))
    try:
        await _follow_run(run, tell)
    finally:
        if not run.over:
            agents.cancel(run.id)
    found = result_of(run.record())
    structured = Raw(msgspec.json.encode(found))
    if found.state != "completed":
        why = found.detail or found.fail_reason or found.state
        return failed_result(f"run {found.id} {found.state}: {why}") | {"structuredContent": structured}
    return text_result(found.output, structured)


def _body(asked: RunAgent) -> bytes:
    body: dict[str, object] = {
        "model": asked.model,
        "user_prompt": asked.prompt,
        "tools": asked.tools,
        "params": asked.params,
    }
    if asked.system:
        body["system_prompt"] = asked.system
    if asked.max_tool_iterations is not None:
        body["max_tool_iterations"] = asked.max_tool_iterations
    return msgspec.json.encode(body)


async def _follow_run(run: AgentRun, tell: Tell | None) -> None:
    """Until it has ended; steps that are too fast to follow are left out."""
    reader, decoder = run.feed.reader(0), Decoder()
    while True:
        data = await reader.receive()
        if data:
            for event in decoder.feed(data):
                if tell is not None and (words := _words_of_event(event)):
                    await tell(words)
        elif reader.overtaken:
            reader, decoder = run.feed.reader(run.feed.dropped), Decoder()
        else:
            return


def _words_of_event(event: SseEvent) -> str:
    match event.name:
        case "output":
            return msgspec.json.decode(event.data, type=_Output).text
        case "tool_call":
            return f"[uses {msgspec.json.decode(event.data, type=_Use).name}]"
        case _:
            return ""
