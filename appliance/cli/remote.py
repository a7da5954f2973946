"""Requests to a server that is already running, and a conversation with one model over any connection to a chat
endpoint.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
import trio
from msgspec import Struct

from appliance.cli.options import UNIX, own_socket
from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.installed import ENVIRONMENT, ENVIRONMENT_FILES, NAME, UNITS, assignments
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NULL, ChatCompletion, error_text
from appliance.core.server_choice import (
    LET_IN,
    SERVICE_SOCKET,
    Kind,
    ServerChoice,
    ServerFacts,
    Side,
    choose_server,
)
from appliance.core.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from appliance.errors import ApplianceError, CallerError, UpstreamFailed, UsageError
from appliance.platform.console import PROGRAM, say
from appliance.platform.identity import become, live_in
from appliance.platform.unix_sockets import believed_users, state_of
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
    """The server that a command asks, whether it runs or not; see `core.server_choice`."""

    url: str
    address: Address
    prefix: str
    kind: Kind

    @property
    def named(self) -> bool:
        """No other server may answer, and no file of the caller takes its place."""
        return self.kind in ("named", "service")


class NotRunning(ApplianceError):
    """Nothing answers where the server should be; ``slow``: what takes connections there answers too late."""

    def __init__(self, server: RunningServer, why: str, *, slow: bool = False) -> None:
        self.why = why.partition(" (")[0]
        self.slow = slow
        super().__init__(
            f"no server answers at {server.url} ({self.why}); start one with 'llama-appliance serve', "
            "or name another with --url"
        )


class RequestRefused(CallerError):
    """The server answered with a status that blames the request."""

    reason = "invalid_request"

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ServerFailed(ApplianceError):
    """The server answered with a status that blames itself."""


class ErrorBody(Struct, frozen=True):
    """The part of an error answer that is for people."""

    message: str = ""


class ErrorAnswer(Struct, frozen=True):
    """OpenAI's error envelope."""

    error: ErrorBody


def server_options(command: Callable[..., T]) -> Callable[..., T]:
    """The options that say which server is asked, as the parameter ``server``."""

    @functools.wraps(command)
    def with_server(*, url: str | None, api_key: str | None, side: Side | None, verbose: bool, **given: object) -> T:
        return command(server=find_server(url, api_key, side, verbose=verbose), **given)

    asked = click.option("-v", "--verbose", is_flag=True, help="Say which server is asked, and why.")(with_server)
    return address_options(_own_option(asked))


def files_options(command: Callable[..., T]) -> Callable[..., T]:
    """The same for a command that also works on files, where no server runs."""
    return _system_option(server_options(command))


def home_options(command: Callable[..., T]) -> Callable[..., T]:
    """The same for what no server does for its clients: the command has to be at home where the files are."""

    @functools.wraps(command)
    def at_home(*, server: RunningServer, **given: object) -> T:
        _refuse_guests(server)
        return command(server=server, **given)

    return files_options(at_home)


def side_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--own`` and ``--system`` alone, as ``side``: see `go_home`."""
    return _system_option(_own_option(command))


def go_home(side: Side | None, *, only_reads: bool = False) -> None:
    """Make a command that asks no server work on the files of the server that runs. Raises UsageError.

    ``only_reads``: root stays root, so that it may write what it has read where it likes.
    """
    _refuse_guests(find_server(side=side, only_reads=only_reads))


def _refuse_guests(server: RunningServer) -> None:
    if server.kind == "service":
        raise UsageError(
            "the service of this machine has its own files: put 'sudo' before the command, or --own behind it for yours"
        )


_own_option = click.option(
    "--own", "side", flag_value="own", help="Ask your own server and use your own files, although a service runs."
)
_system_option = click.option(
    "--system",
    "side",
    flag_value="system",
    help="Work for the service of this machine, as its user; needs root while it does not run.",
)


def address_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--url`` and ``--api-key``, as parameters of these names."""
    command = click.option(
        "--api-key", metavar="KEY", help=f"The server's key (or {KEY_VARIABLE}).", envvar=KEY_VARIABLE
    )(command)
    return click.option(
        "--url",
        metavar="URL",
        help=f"The server (or {URL_VARIABLE}); default: yours or the service, else {DEFAULT_URL}.",
    )(command)


def find_server(
    url: str | None = None,
    api_key: str | None = None,
    side: Side | None = None,
    *,
    verbose: bool = False,
    only_reads: bool = False,
) -> RunningServer:
    """Find the server that a command asks, and become its user where root has to. Raises UsageError."""
    own = own_socket().path
    is_root = sys.platform != "win32" and os.geteuid() == 0
    choice = choose_server(
        ServerFacts(
            option=url,
            variable=os.environ.get(URL_VARIABLE),
            side=side,
            own_socket=own,
            own=state_of(own, believed_users()),
            service=state_of(SERVICE_SOCKET, believed_users()),
            is_installed=any(os.access(unit, os.F_OK) for unit in UNITS),
            is_root=is_root and own != SERVICE_SOCKET,
        )
    )
    if verbose:
        say(f"server: {choice.url} ({choice.why})")
    if choice.enters:
        _enter_service(live_in if only_reads else partial(become, NAME))
    return _parsed(choice, api_key)


def _enter_service(enter: Callable[[Mapping[str, str]], None]) -> None:
    """Go on with the files and settings of the service. Raises UsageError."""
    values: dict[str, str] = {}
    for file in ENVIRONMENT_FILES:
        with suppress(OSError):
            values |= assignments(Path(file).read_text("utf-8", "replace"))
    try:
        enter(values | ENVIRONMENT)
    except KeyError:
        raise UsageError(f"there is no user {NAME}; 'sudo {PROGRAM} service install' makes it") from None


def _parsed(choice: ServerChoice, api_key: str | None) -> RunningServer:
    text = choice.url
    key = api_key.partition(",")[0].strip() if api_key else None
    if text.startswith(UNIX):
        users = None if choice.kind == "named" else believed_users()
        address = Address("localhost", 80, key or None, text, socket=text.removeprefix(UNIX), users=users)
        return RunningServer(url=text, address=address, prefix="", kind=choice.kind)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or 80
    except ValueError as cause:
        raise UsageError(f"--url {text}: {cause}") from None
    if parts.scheme != "http" or not host:
        raise UsageError(f"--url {text}: expected an address such as {DEFAULT_URL} or unix:/run/llama.sock")
    return RunningServer(
        url=text.rstrip("/"),
        address=Address(host, port, key or None, text),
        prefix=parts.path.rstrip("/"),
        kind=choice.kind,
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
        why = f"it accepts connections but did not answer within {patience:g} s"
        raise NotRunning(server, why, slow=True) from None
    except UpstreamFailed as cause:
        raise NotRunning(server, cause.why) from None


@asynccontextmanager
async def following(server: RunningServer, path: str) -> AsyncGenerator[HttpAnswer]:
    """An answer that has no end, such as a log; its head comes within `ANSWER_TIME`.

    Raises NotRunning, also if it breaks off later, RequestRefused or ServerFailed.
    """
    try:
        with trio.fail_after(ANSWER_TIME) as patience:
            async with HttpCall(server.address, "GET", server.prefix + path) as response:
                await refuse_errors(server, response)
                patience.deadline = math.inf
                yield response
    except UpstreamFailed as cause:
        raise NotRunning(server, cause.why) from None
    except trio.TooSlowError:
        raise NotRunning(server, f"it did not answer within {ANSWER_TIME:g} s", slow=True) from None


async def is_running(server: RunningServer) -> bool:
    """True if the server answers. Raises NotRunning where no other way is left: for one that the user named."""
    try:
        await ask_raw(server, "GET", "/health")
    except NotRunning:
        if server.named:
            raise
        return False
    return True


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
    raise RequestRefused(text, status) if status < 500 else ServerFailed(text)


def key_advice() -> str:
    """Return how a server without its key can be used, as the end of a message."""
    is_closed = state_of(SERVICE_SOCKET, believed_users()) == "closed"
    service = f"; {LET_IN}, and root needs none; --own is without it" if is_closed else ""
    return f"; give the server's key with --api-key or {KEY_VARIABLE}{service}"


Ask = Callable[[bytes], AbstractAsyncContextManager[HttpAnswer]]
"""Sends a chat request and returns its successful response; otherwise raises ApplianceError."""


@asynccontextmanager
async def ask_model(server: RunningServer, body: bytes) -> AsyncGenerator[HttpAnswer]:
    """The `Ask` of a running server."""
    answering = False
    try:
        async with HttpCall(server.address, "POST", server.prefix + CHAT_PATH, JSON_HEADERS, body) as response:
            await refuse_errors(server, response)
            answering = True
            yield response
    except UpstreamFailed as cause:
        if answering:
            raise ServerFailed(f"the answer broke off: {cause.why} ({server.url})") from None
        raise NotRunning(server, cause.why) from None


class RunMessage(Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: str
    content: str


class StreamOptions(Struct, frozen=True):
    """Wishes for a stream beside its answer."""

    include_usage: bool


class ChatRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of OpenAI's chat request that the terminal needs; the last two are llama-server's own."""

    model: str
    messages: tuple[RunMessage, ...]
    stream: bool = False
    stream_options: StreamOptions | None = None
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

    def take(record: ChatCompletion) -> None:
        nonlocal finish_reason
        for choice in (record.choices or ())[:1]:
            finish_reason = choice.finish_reason or finish_reason
            if text := choice.said.text:
                pieces.append(text)
                write(text)

    await stream_records(ask, request, take)
    return StreamedAnswer("".join(pieces), finish_reason, len(pieces))


async def stream_records(ask: Ask, request: ChatRequest, take: Callable[[ChatCompletion], None]) -> None:
    """Pass each record of the answer to ``take`` as it comes. Raises UpstreamFailed when the stream breaks."""
    decoder = Decoder()
    async with ask(msgspec.json.encode(msgspec.structs.replace(request, stream=True))) as response:
        while data := await response.receive():
            for record in _records(request.model, decoder, data):
                if record is None:
                    return
                take(record)
    raise UpstreamFailed(request.model, f"its stream ended without {DONE}")


def _records(model: str, decoder: Decoder, data: bytes) -> Iterator[ChatCompletion | None]:
    """Return the records that these bytes complete, and those before an error; None marks the end of the stream."""
    try:
        for event in decoder.feed(data):
            if event.data == DONE:
                yield None
                continue
            chunk = _decode_chunk(event.data)
            if chunk.error != NULL:
                raise UpstreamFailed(model, error_text(chunk.error) or "it reported an error")
            yield chunk
    except (RecordTooLong, *UNREADABLE) as cause:
        raise UpstreamFailed(model, f"its stream cannot be read: {cause}") from None


_decode_chunk = msgspec.json.Decoder(ChatCompletion).decode
