"""A conversation with one model, over any connection to a chat endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import Struct

from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.errors import UpstreamFailed
from appliance.upstream.client import Response

CHAT_PATH = "/v1/chat/completions"
MAX_ANSWER = 64 << 20
DONE = "[DONE]"

Ask = Callable[[bytes], AbstractAsyncContextManager[Response]]
"""Sends a chat request and returns its successful response; otherwise raises ApplianceError or ClickException."""


class Message(Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: str
    content: str


class ChatRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of OpenAI's chat request that the terminal needs; the last two are llama-server's own."""

    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    cache_prompt: bool = True


class Delta(Struct, frozen=True):
    """The text that a streamed chunk adds; ``reasoning_content`` is the model's reasoning before its answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(Struct, frozen=True):
    """The one choice of a streamed chunk."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class StreamError(Struct, frozen=True):
    """An error reported inside a stream."""

    message: str = "it reported an error"


class Chunk(Struct, frozen=True):
    """One record of a chat stream: a piece of the answer, or the error that ends it."""

    choices: tuple[Choice, ...] = ()
    error: StreamError | None = None


class Streamed(Struct, frozen=True):
    """A streamed answer that reached its end."""

    text: str
    finish_reason: str | None
    chunks: int


async def whole_answer(ask: Ask, request: ChatRequest) -> bytes:
    """Return the answer as one JSON document, unchanged."""
    async with ask(msgspec.json.encode(request)) as response:
        return await response.read(MAX_ANSWER)


async def stream_answer(ask: Ask, request: ChatRequest, write: Callable[[str], None]) -> Streamed:
    """Pass each piece of the answer to ``write`` as it comes. Raises UpstreamFailed when the stream breaks."""
    pieces: list[str] = []
    finish_reason: str | None = None
    decoder = Decoder()
    async with ask(msgspec.json.encode(msgspec.structs.replace(request, stream=True))) as response:
        while data := await response.receive():
            for choice in _choices(request.model, decoder, data):
                if choice is None:
                    return Streamed("".join(pieces), finish_reason, len(pieces))
                finish_reason = choice.finish_reason or finish_reason
                if choice.delta.content:
                    pieces.append(choice.delta.content)
                    write(choice.delta.content)
    raise UpstreamFailed(request.model, f"its stream ended without {DONE}")


def _choices(model: str, decoder: Decoder, data: bytes) -> Iterator[Choice | None]:
    """Return the choices that these bytes complete, and those before an error; None marks the end of the stream."""
    try:
        for event in decoder.feed(data):
            if event.data == DONE:
                yield None
                continue
            chunk = _decode_chunk(event.data)
            if chunk.error is not None:
                raise UpstreamFailed(model, chunk.error.message)
            yield from chunk.choices[:1]
    except (RecordTooLong, msgspec.MsgspecError) as cause:
        raise UpstreamFailed(model, f"its stream cannot be read: {cause}") from None


_decode_chunk = msgspec.json.Decoder(Chunk).decode
