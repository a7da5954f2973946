"""``run``: chat with a model in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from appliance.platform.console import EXIT_INTERRUPTED, can_ask, harmless, say, say_error
from appliance.trio_parts import beside

try:
    import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]  line editing for input()
except ImportError:
    pass  # Windows edits lines by itself

import click
import trio
from msgspec import Struct

from appliance.catalog.catalog import scan_models
from appliance.cli.app import ground_of
from appliance.cli.options import ModelOptions, catalog_options, gathered
from appliance.cli.remote import (
    CHAT_PATH,
    JSON_HEADERS,
    MAX_ANSWER,
    Ask,
    ChatRequest,
    RunMessage,
    RunningServer,
    ask_model,
    is_running,
    refuse,
    server_options,
    stream_answer,
    whole_answer,
)
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.engines.named import ENGINE_HELP
from appliance.errors import ApplianceError, UsageError
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import HttpAnswer, HttpCall

FROM_STDIN = "-"
MAX_PROMPT = 16 << 20
GOODBYE = "/bye"
PROMPT = ">>> "

T = TypeVar("T")


class ChatOptions(Struct, frozen=True, kw_only=True):
    """The options that shape a conversation."""

    model: str
    system: str | None
    temp: float | None
    as_json: bool


@click.command(name="run")
@gathered(
    "chat",
    ChatOptions,
    click.argument("model"),
    click.option("--system", metavar="TEXT", help="A system prompt for the model."),
    click.option("--temp", type=click.FloatRange(0, 5), help="Temperature; 0 gives the same answer every time."),
    click.option("--json", "as_json", is_flag=True, help="Print the whole answer of the server as JSON."),
)
@click.argument("prompt", required=False)
@server_options
@click.option("--engine", metavar="ENGINE", help=f"If no server runs: {ENGINE_HELP}")
@catalog_options
@click.pass_context
async def run_model(
    ctx: click.Context,
    server: RunningServer,
    chat: ChatOptions,
    prompt: str | None,
    engine: str | None,
    choice: ModelOptions,
) -> int:
    """Ask MODEL one question, or chat with it when there is no PROMPT.

    PROMPT - reads standard input. The command uses the server at --url; if none runs there, it loads the model until it
    ends. Standard output holds only the answer. In a chat, Ctrl-C stops an answer, and /bye or Ctrl-D ends the chat.

    \b
    Examples:
      llama-appliance run starter "Tell me a joke"
      llama-appliance run starter --system "Answer in one word." < question.txt
      llama-appliance run starter
    """
    sources = choice.sources()
    question = _question(prompt)
    if question is None and chat.as_json:
        raise UsageError("--json needs a PROMPT: a chat has no single answer")
    if await is_running(server):
        return await _converse(partial(ask_model, server), chat, question)
    found = ground_of(ctx).engines().found(engine)
    model = (await trio.to_thread.run_sync(scan_models, sources)).require(chat.model)
    say(f"no server is running at {server.url}: loading {model.id} for this command")
    outcome: int | Exception
    async with (
        found.open() as engines,
        open_fleet(FleetSettings(models_max=1), engines, estimate=ground_of(ctx).estimate()) as fleet,
    ):
        try:
            outcome = await _converse(partial(_ask_fleet, fleet, model), chat, question)
        except ApplianceError as error:
            outcome = error  # it leaves the fleet's nursery as a value, so that it is reported as itself
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _question(prompt: str | None) -> str | None:
    """Return the prompt, from the command line or standard input; None for a chat."""
    if prompt is None and can_ask():
        return None
    text = sys.stdin.read(MAX_PROMPT) if prompt in (None, FROM_STDIN) else prompt
    if not text or not text.strip():
        raise UsageError("the prompt is empty; give one, or start the command in a terminal to chat")
    return text


@asynccontextmanager
async def _ask_fleet(fleet: Fleet, model: Model, body: bytes) -> AsyncGenerator[HttpAnswer]:
    async with (
        fleet.lease(model) as address,
        HttpCall(address, "POST", CHAT_PATH, JSON_HEADERS, body) as response,
    ):
        if response.status >= 400:
            refuse(f"the engine of '{model.id}'", response.status, await response.read(MAX_ANSWER))
        yield response


async def _converse(ask: Ask, chat: ChatOptions, question: str | None) -> int:
    history = (RunMessage(role="system", content=chat.system),) if chat.system else ()
    if question is None:
        return await _chat(ask, chat, history)
    request = _request(chat, (*history, RunMessage(role="user", content=question)))
    if chat.as_json:
        answer = await _until_interrupted(partial(whole_answer, ask, request))
        if answer is not None:
            click.echo(answer.decode())
    else:
        answer = await _until_interrupted(partial(stream_answer, ask, request, _write))
        click.echo()
    return 0 if answer is not None else EXIT_INTERRUPTED


async def _chat(ask: Ask, chat: ChatOptions, history: tuple[RunMessage, ...]) -> int:
    say(f"Chatting with {chat.model}. Ctrl-C stops an answer; {GOODBYE} or Ctrl-D ends.")
    while (line := _next_line()) is not None:
        asked = (*history, RunMessage(role="user", content=line))
        said: list[str] = []

        def write(piece: str, said: list[str] = said) -> None:
            said.append(piece)
            _write(piece)

        try:
            await _until_interrupted(partial(stream_answer, ask, _request(chat, asked), write))
        except ApplianceError as error:
            say_error(str(error), 0)
            continue  # the question is not kept: it can be asked again
        click.echo()
        history = (*asked, RunMessage(role="assistant", content="".join(said)))
    return 0


def _next_line() -> str | None:
    """Return the user's next line; None at the end.

    The event loop stands still meanwhile. That does no harm: the loop has only this conversation, an idle model process
    prints nothing, and only the main thread gets line editing and Ctrl-C right.
    """
    while True:
        if not sys.stdout.isatty():  # it holds the answers and nothing else
            click.echo(PROMPT, nl=False, err=True)
        try:
            line = input(PROMPT if sys.stdout.isatty() else "").strip()
        except EOFError:
            say("")
            return None
        except KeyboardInterrupt:
            say(f"\n({GOODBYE} or Ctrl-D ends)")
            continue
        if line == GOODBYE:
            return None
        if line:
            return line


def _request(chat: ChatOptions, messages: tuple[RunMessage, ...]) -> ChatRequest:
    return ChatRequest(model=chat.model, messages=messages, temperature=chat.temp)


def _write(piece: str) -> None:
    sys.stdout.write(harmless(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


async def _until_interrupted(work: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of ``work``; None when Ctrl-C stopped it."""
    result: T | None = None
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with beside() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            result = await work()
    return result


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
