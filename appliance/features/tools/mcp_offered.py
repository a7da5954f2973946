"""Models and agent runs as tools of the program's MCP server.

Ask a model, list models, embed texts; begin a run, follow it, tell what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
import trio
from msgspec import Meta, Raw, Struct

from appliance.core.bodies.json_text import JsonObject
from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.lenient_json import UNREADABLE
from appliance.core.openai import NULL, ChatCompletion, ChatUsage, Embeddings, error_text
from appliance.core.runs.inward import Asker, InwardReply
from appliance.core.turns.tasks import RunTask, Tell
from appliance.errors import BadRequest, UpstreamFailed
from appliance.features.tools.core.specs import schema_of

ORIGIN = "mcp"  # the client's name in the list of requests in flight
MAX_ANSWER = 64 << 20
MAX_REFUSAL = 1 << 16
TELL_EVERY = 0.5  # seconds between two pieces of progress

Result = dict[str, object]  # the result of `tools/call`
_OWNED = ("model", "messages", "stream", "tools", "appliance")
DESCRIPTION = "Lets a language model on this machine work on a task with tools, and waits for what comes of it."


class Chat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``chat``."""

    model: Annotated[str | None, Meta(description="Name of the model; 'list_models' tells them.")] = None
    prompt: Annotated[str, Meta(description="The question. Either this or 'messages'.")] = ""
    system: Annotated[str, Meta(description="Instructions that go before the question.")] = ""
    messages: Annotated[
        list[dict[str, Raw]], Meta(description="A whole conversation in OpenAI's form, instead of 'prompt'.")
    ] = []
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Longest answer.")] = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    params: Annotated[
        dict[str, Raw], Meta(description="Further parameters of /v1/chat/completions, as top_p or seed.")
    ] = {}


class Embed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``embed``."""

    model: Annotated[str | None, Meta(description="Name of an embedding model; 'list_models' tells them.")] = None
    input: Annotated[str | list[str], Meta(description="The text, or several.")]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a tool that has none."""


class _ChatText(Struct):
    """An answer as far as it has come."""

    model: str = ""
    text: list[str] = []
    reasoning: list[str] = []
    finish_reason: str | None = None
    usage: ChatUsage | None = None

    def add(self, part: ChatCompletion) -> None:
        self.model = part.model or self.model
        self.usage = part.usage or self.usage
        for choice in (part.choices or ())[:1]:
            self.text.append(choice.said.text)
            self.reasoning.append(choice.said.thoughts)
            self.finish_reason = choice.finish_reason or self.finish_reason


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
    found = _ChatText()
    async with asker.ask("/v1/chat/completions", body, origin=ORIGIN) as reply:
        await _refuse(reply)
        if tell is None or not reply.event_stream:
            found.add(_decoded(await reply.read(MAX_ANSWER)))
        else:
            await _follow_answer(reply, found, tell)
    text, reasoning = "".join(found.text), "".join(found.reasoning)
    structured: dict[str, object] = {"model": found.model, "text": text, "finish_reason": found.finish_reason}
    more = {"reasoning": reasoning, "usage": found.usage}
    return text_result(text, structured | {name: value for name, value in more.items() if value})


async def embed(asker: Asker, arguments: Embed) -> Result:
    """Raises EngineRefused and what `Asker.ask` raises."""
    body = {"input": arguments.input} | ({"model": arguments.model} if arguments.model else {})
    async with asker.ask("/v1/embeddings", msgspec.json.encode(body), origin=ORIGIN) as reply:
        await _refuse(reply)
        try:
            found = msgspec.json.decode(await reply.read(MAX_ANSWER), type=Embeddings)
        except UNREADABLE as error:
            raise UpstreamFailed(arguments.model or "", f"its embeddings cannot be read ({error})") from None
    return json_result({"model": found.model, "embeddings": found.vectors, "usage": found.usage or {}})


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
    said = {"model": asked.model or None, "max_tokens": asked.max_tokens, "temperature": asked.temperature}
    body: dict[str, object] = {**asked.params, "messages": messages} | _given(said)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def _given(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in arguments.items() if value is not None}


async def _follow_answer(reply: InwardReply, found: _ChatText, tell: Tell) -> None:
    """Read a stream to its end, and tell it piece by piece."""
    decoder = Decoder()
    listed, size, due = 0, 0, trio.current_time()
    while data := await reply.receive():
        size += len(data)
        if size > MAX_ANSWER:
            raise UpstreamFailed(found.model, f"its answer is longer than {MAX_ANSWER} bytes")
        try:
            events = decoder.feed(data)
        except RecordTooLong as error:
            raise UpstreamFailed(found.model, str(error)) from None
        for event in events:
            if event.data != "[DONE]":
                found.add(_decoded(event.data.encode()))
        if trio.current_time() >= due and (untold := "".join(found.text[listed:])):
            await tell(untold)
            listed, due = len(found.text), trio.current_time() + TELL_EVERY
    if untold := "".join(found.text[listed:]):
        await tell(untold)


def _decoded(body: bytes) -> ChatCompletion:
    try:
        found = msgspec.json.decode(body, type=ChatCompletion)
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

    model: Annotated[str, Meta(description="Name of the model; 'list_models' tells them.")]
    prompt: Annotated[str, Meta(description="The task.")]
    system: Annotated[str, Meta(description="Instructions that go before the task.")] = ""
    tools: Annotated[list[str], Meta(description="Tools of this machine that the model may use.")] = []
    max_tool_iterations: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="How often it may use tools.")
    ] = None
    params: Annotated[
        dict[str, Raw], Meta(description="Further parameters of /v1/chat/completions, as temperature.")
    ] = {}


def run_schema(tools: Collection[str]) -> JsonObject:
    """The arguments; ``tools`` are those that a run may be given."""
    schema = schema_of(RunAgent)
    match schema:
        case {"properties": {"tools": dict(listed)}} if tools:
            listed["items"] = {"type": "string", "enum": [*sorted(tools)]}
        case {"properties": {"tools": dict(listed)}}:
            listed["description"] = "There are none."
        case _:
            pass
    return schema


async def run_agent(run_task: RunTask, arguments: RunAgent, allowed: Collection[str], tell: Tell | None) -> Result:
    """Run the task; a caller that stops waiting cancels the run. Raises BadRequest, and what ``run_task`` raises."""
    for name in arguments.tools:
        if name not in allowed:
            raise BadRequest(
                f"the tool '{name}' is not for MCP clients; start the server with --mcp-server-tools {name}",
                param="tools",
            )
    body = {
        "model": arguments.model,
        "user_prompt": arguments.prompt,
        "system_prompt": arguments.system or None,
        "tools": arguments.tools,
        "params": arguments.params,
        "max_tool_iterations": arguments.max_tool_iterations,
    }
    end = await run_task(msgspec.json.encode(_given(body)), tell)
    if end.failure is not None:
        return failed_result(end.failure) | {"structuredContent": end.result}
    return text_result(end.output, end.result)
