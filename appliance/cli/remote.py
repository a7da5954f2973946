"""Requests to a server that is already running, and a conversation with one model over any connection to a chat
endpoint.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
import trio
from msgspec import Struct

from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NULL, ChatChoice, ChatCompletion, error_text
from appliance.core.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from appliance.core.systemd import KEY_FILE
from appliance.errors import ApplianceError, CallerError, UpstreamFailed, UsageError
from appliance.upstream.client import Address, HttpAnswer, HttpCall

ANSWER_TIME = 30.0
"""Seconds for an answer that involves no model."""
MAX_ANSWER = 64 << 20
NOT_RUNNING = ("unloaded", "downloaded")

JSON_HEADERS = ((b"Content-Type", b"application/json"),)
T = TypeVar("T")
CHAT_PATH = "/v1/chat/completions"
DONE = "[DONE]"


class ServerModelStatus(Struct, frozen=True, kw_only=True):
    """A model's state, in the format of llama-server's router; the other fields are set only after a failure."""

    value: str = "loaded"
    failed: bool = False
    exit_code: int | None = None
    error: str | None = None
    engine: str | None = None
    """The build and devices on which it runs; None for a configured model, and in llama-server's own router."""
    args: tuple[str, ...] = ()
    """The command of its process."""


class ServerModel(Struct, frozen=True, kw_only=True):
    """One model of ``GET /models``, as far as this program shows it."""

    id: str
    aliases: tuple[str, ...] = ()
    status: ServerModelStatus = ServerModelStatus()


class ModelList(Struct, frozen=True):
    """``GET /models``."""

    data: list[ServerModel]


class RunningServer(Struct, frozen=True, kw_only=True):
    """A running server. ``named`` means that the user gave the address, so no other server may answer."""

    url: str
    address: Address
    prefix: str
    named: bool


class NotRunning(ApplianceError):
    """Nothing answers where the server should be."""

    def __init__(self, server: RunningServer, why: str) -> None:
        self.why = why.partition(" (")[0]
        super().__init__(
            f"no server answers at {server.url} ({self.why}); start one with 'llama-appliance serve', "
            "or name another with --url"
        )


class RequestRefused(CallerError):
    """The server answered with a status that blames the request."""

    reason = "invalid_request"


class ServerFailed(ApplianceError):
    """The server answered with a status that blames itself."""


class ErrorBody(Struct, frozen=True):
    """The part of an error answer that is for people."""

    message: str = ""


class ErrorAnswer(Struct, frozen=True):
    """OpenAI's error envelope."""

    error: ErrorBody


def server_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--url`` and ``--api-key``, as the parameter ``server``."""

    @functools.wraps(command)
    def with_server(*, url: str | None, api_key: str | None, **given: object) -> T:
        return command(server=parse_server(url, api_key), **given)

    return address_options(with_server)


def address_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--url`` and ``--api-key``, as parameters of these names."""
    command = click.option(
        "--api-key", metavar="KEY", help=f"The server's key (or {KEY_VARIABLE}).", envvar=KEY_VARIABLE
    )(command)
    return click.option("--url", metavar="URL", help=f"The server (or {URL_VARIABLE}); default {DEFAULT_URL}.")(command)


def parse_server(url: str | None, api_key: str | None) -> RunningServer:
    """Return the server of ``--url``, else of the environment, else the default one. Raises UsageError."""
    given = url or os.environ.get(URL_VARIABLE)
    text = given or DEFAULT_URL
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or 80
    except ValueError as cause:
        raise UsageError(f"--url {text}: {cause}") from None
    if parts.scheme != "http" or not host:
        raise UsageError(f"--url {text}: expected an address such as {DEFAULT_URL}")
    key = api_key.partition(",")[0].strip() if api_key else None
    return RunningServer(
        url=text.rstrip("/"),
        address=Address(host, port, key or None, text),
        prefix=parts.path.rstrip("/"),
        named=given is not None,
    )


async def ask(server: RunningServer, method: str, path: str, answer: type[T], body: object = None) -> T:
    """Send one request to the server, answered within `ANSWER_TIME`. Raises NotRunning, Refused or ServerFailed."""
    found = decoded(answer, await ask_raw(server, method, path, body))
    if found is None:
        raise NotRunning(server, "another program listens there")
    return found


async def ask_raw(
    server: RunningServer, method: str, path: str, body: object = None, *, patience: float = ANSWER_TIME
) -> bytes:
    """Send one request, and return its raw answer within ``patience`` seconds."""
    sent = b"" if body is None else msgspec.json.encode(body)
    try:
        with trio.fail_after(patience):
            async with HttpCall(server.address, method, server.prefix + path, JSON_HEADERS, sent) as response:
                await refuse_errors(server, response)
                return await response.read(MAX_ANSWER)
    except trio.TooSlowError:
        raise NotRunning(server, f"it accepts connections but did not answer within {patience:g} s") from None
    except UpstreamFailed as cause:
        raise NotRunning(server, cause.why) from None


async def refuse_errors(server: RunningServer, response: HttpAnswer) -> None:
    """Raises Refused or ServerFailed unless the server accepted the request."""
    if response.status < 400:
        return
    refuse(server.url, response.status, await response.read(MAX_ANSWER))


def refuse(who: str, status: int, body: bytes) -> NoReturn:
    """Raise Refused or ServerFailed in the server's own words."""
    answer = decoded(ErrorAnswer, body)
    message = answer.error.message if answer is not None else body.decode("utf-8", "replace").strip()[:200]
    advice = key_advice() if status == 401 else ""
    text = f"{message or 'it gave no reason'}{advice} ({who} answered {status})"
    raise RequestRefused(text) if status < 500 else ServerFailed(text)


def key_advice() -> str:
    """Return where a key is given, and where that of this machine's service is kept, as the end of a message."""
    kept = f"; root finds that of this machine's service in {KEY_FILE}" if os.access(KEY_FILE, os.F_OK) else ""
    return f"; give the server's key with --api-key or {KEY_VARIABLE}{kept}"


Ask = Callable[[bytes], AbstractAsyncContextManager[HttpAnswer]]
"""Sends a chat request and returns its successful response; otherwise raises ApplianceError."""


class RunMessage(Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: str
    content: str


class ChatRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of OpenAI's chat request that the terminal needs; the last two are llama-server's own."""

    model: str
    messages: tuple[RunMessage, ...]
    stream: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    cache_prompt: bool = True


class StreamedAnswer(Struct, frozen=True):
    """A streamed answer that reached its end."""

    text: str
    finish_reason: str | None
    chunks: int


async def whole_answer(ask: Ask, request: ChatRequest) -> bytes:
    """Return the answer as one JSON document, unchanged."""
    async with ask(msgspec.json.encode(request)) as response:
        return await response.read(MAX_ANSWER)


async def stream_answer(ask: Ask, request: ChatRequest, write: Callable[[str], None]) -> StreamedAnswer:
    """Pass each piece of the answer to ``write`` as it comes. Raises UpstreamFailed when the stream breaks."""
    pieces: list[str] = []
    finish_reason: str | None = None
    decoder = Decoder()
    async with ask(msgspec.json.encode(msgspec.structs.replace(request, stream=True))) as response:
        while data := await response.receive():
            for choice in _choices(request.model, decoder, data):
                if choice is None:
                    return StreamedAnswer("".join(pieces), finish_reason, len(pieces))
                finish_reason = choice.finish_reason or finish_reason
                if text := choice.said.text:
                    pieces.append(text)
                    write(text)
    raise UpstreamFailed(request.model, f"its stream ended without {DONE}")


def _choices(model: str, decoder: Decoder, data: bytes) -> Iterator[ChatChoice | None]:
    """Return the choices that these bytes complete, and those before an error; None marks the end of the stream."""
    try:
        for event in decoder.feed(data):
            if event.data == DONE:
                yield None
                continue
            chunk = _decode_chunk(event.data)
            if chunk.error != NULL:
                raise UpstreamFailed(model, error_text(chunk.error) or "it reported an error")
            yield from (chunk.choices or ())[:1]
    except (RecordTooLong, *UNREADABLE) as cause:
        raise UpstreamFailed(model, f"its stream cannot be read: {cause}") from None


_decode_chunk = msgspec.json.Decoder(ChatCompletion).decode
