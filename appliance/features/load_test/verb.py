"""``load-test``: many requests at once to models of the running server, and how fast each model answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import click
import trio
from msgspec import Struct

from appliance.cli.options import gathered
from appliance.cli.remote import (
    ChatRequest,
    RunMessage,
    RunningServer,
    StreamOptions,
    ask_model,
    ask_raw,
    server_options,
    stream_records,
)
from appliance.cli.show import json_option, print_json, print_table
from appliance.core.headers import field
from appliance.core.lenient_json import decoded
from appliance.core.openai import ChatCompletion
from appliance.errors import ApplianceError
from appliance.features.load_test.rules import MeasuredModel, MeasuredRequest, summed_up
from appliance.platform.console import EXIT_OURS, say
from appliance.upstream.client import HttpAnswer

PROMPT = "Tell me about llamas."
COLUMNS = ("MODEL", "REQUESTS", "FAILED", "SECONDS", "REQUESTS/S", "TOKENS/S", "WAITED", "FIRST P50", "FIRST P95")


class LoadOptions(Struct, frozen=True, kw_only=True):
    """The number and the form of the requests."""

    requests: int
    at_once: int
    prompt: str
    max_tokens: int


class LoadResult(Struct, frozen=True):
    """The whole test, as ``--json`` prints it."""

    models: list[MeasuredModel]
    requests: list[MeasuredRequest]


@click.command(name="load-test")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@gathered(
    "options",
    LoadOptions,
    click.option("--requests", type=click.IntRange(1), default=4, show_default=True, help="How many for each model."),
    click.option("--at-once", type=click.IntRange(1), default=2, show_default=True, help="How many under way."),
    click.option("--prompt", metavar="TEXT", default=PROMPT, show_default=True, help="The question of every request."),
    click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Longest answer."),
)
@server_options
@json_option
async def load_test(server: RunningServer, models: tuple[str, ...], options: LoadOptions, as_json: bool) -> int:
    """Ask each MODEL many times, several requests at once, and show how fast each answered.

    The models take turns, so models that cannot run together swap. No prompt is taken from the engine's cache. FIRST is
    the seconds to the first piece of an answer, with the wait for the model. --json has every request too.

    \b
    Examples:
      llama-appliance load-test starter
      llama-appliance load-test qwen gemma --requests 20 --at-once 8 --max-tokens 200
    """
    await ask_raw(server, "GET", "/health")  # one error, and not one for each request
    done: list[MeasuredRequest] = []
    start = trio.current_time()
    turns = iter([model for _ in range(options.requests) for model in dict.fromkeys(models)])

    async def work() -> None:
        for model in turns:
            done.append(await _measured(server, model, options, start))

    async with trio.open_nursery() as nursery:
        for _ in range(options.at_once):
            nursery.start_soon(work)
    done.sort(key=lambda each: each.began)
    found = summed_up(done)
    if as_json:
        print_json(LoadResult(found, done))
    else:
        print_table(COLUMNS, [_cells(each) for each in found], right=COLUMNS[1:])
        for model, error in dict.fromkeys((each.model, each.error) for each in done if each.error is not None):
            say(f"{model}: {error}")
    return EXIT_OURS if any(each.failed for each in found) else 0


async def _measured(server: RunningServer, model: str, options: LoadOptions, start: float) -> MeasuredRequest:
    """Ask once. Every error becomes a fact of the request."""
    began = trio.current_time() - start
    waited: float | None = None
    first: float | None = None
    error: str | None = None
    pieces = tokens = 0

    @asynccontextmanager
    async def ask(body: bytes) -> AsyncGenerator[HttpAnswer]:
        nonlocal waited
        async with ask_model(server, body) as answer:
            wait = field(answer.headers, b"x-queue-wait")
            waits = field(answer.headers, b"x-queue-position") is not None
            waited = decoded(float, wait) if wait is not None else None if waits else 0.0
            yield answer

    def take(record: ChatCompletion) -> None:
        nonlocal first, pieces, tokens
        if any(choice.said.text or choice.said.thoughts for choice in record.choices or ()):
            pieces += 1
            first = first if first is not None else trio.current_time() - start
        if record.usage is not None:
            tokens = record.usage.completion_tokens or 0

    try:
        await stream_records(ask, _request(model, options), take)
    except ApplianceError as cause:
        error = str(cause)
    return MeasuredRequest(
        model=model,
        began=began,
        first=first,
        ended=trio.current_time() - start,
        waited=waited,
        tokens=tokens or pieces,
        error=error,
    )


def _request(model: str, options: LoadOptions) -> ChatRequest:
    return ChatRequest(
        model=model,
        messages=(RunMessage(role="user", content=options.prompt),),
        stream_options=StreamOptions(include_usage=True),
        max_tokens=options.max_tokens,
        cache_prompt=False,
    )


def _cells(model: MeasuredModel) -> tuple[str, ...]:
    return (
        model.model,
        str(model.requests),
        str(model.failed),
        f"{model.seconds:.1f}",
        f"{model.requests_per_second:.2f}",
        f"{model.tokens_per_second:.1f}",
        *("-" if time is None else f"{time:.2f}" for time in (model.waited, model.first_p50, model.first_p95)),
    )
