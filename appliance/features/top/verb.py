"""``top``: the requests under way on the running server, live, and the models that run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click
import trio
from msgspec import UNSET, Struct

from appliance.cli.remote import RunningServer, ask, ask_raw, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table, table_lines
from appliance.platform.console import say
from appliance.traffic.inflight import InFlightRequest

LOOK_EVERY = 1.0
"""Seconds between two looks; the server asks its engines no more often."""
COLUMNS = ("ID", "CLIENT", "MODEL", "PHASE", "TOKENS", "TOKENS/S", "SLOT", "SECONDS")
NUMBERS = ("TOKENS", "TOKENS/S", "SLOT", "SECONDS")
MODEL_COLUMNS = ("MODEL", "STATE", "MEMORY", "ON GPUS", "WAITING")
MODEL_NUMBERS = ("MEMORY", "ON GPUS", "WAITING")
NOTHING = "nothing is under way"
SHOW, HIDE, HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[?25h", "\x1b[?25l", "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, THIS_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class RequestList(Struct, frozen=True):
    """``GET /api/inflight``."""

    requests: list[InFlightRequest]


class MemoryUse(Struct, frozen=True):
    """A model that runs."""

    name: str
    size: int = 0
    size_vram: int = 0
    state: str = ""
    queue: int = 0
    """Requests that wait for it."""


class MemoryUses(Struct, frozen=True):
    """``GET /api/ps``."""

    models: list[MemoryUse]


class TopPicture(Struct, frozen=True):
    """Everything that is shown at once."""

    requests: list[InFlightRequest]
    models: list[MemoryUse]


@click.command()
@server_options
@click.option("--once", is_flag=True, help="Print what is under way now, and end.")
@click.option("--cancel", metavar="ID", help="End the request with this ID; its client gets an error.")
@json_option
async def top(server: RunningServer, once: bool, cancel: str | None, as_json: bool) -> int:
    """Show the requests under way on the running server, and the models that run, until Ctrl-C.

    Tokens with a ~ are estimated by the size of the answer. --json prints one snapshot.

    \b
    Examples:
      llama-appliance top
      llama-appliance top --once
      llama-appliance top --cancel 17
    """
    if cancel is not None:
        await ask_raw(server, "POST", f"/api/inflight/{cancel}/cancel")
        if as_json:
            print_json({"cancelled": cancel})
        else:
            click.echo(f"request {cancel}: cancelled")
    elif as_json:
        print_json(await _look(server))
    elif once or not sys.stdout.isatty():
        _print(await _look(server))
    else:
        with _screen():
            while True:
                _draw(await _look(server))
                await trio.sleep(LOOK_EVERY)
    return 0


async def _look(server: RunningServer) -> TopPicture:
    requests = (await ask(server, "GET", "/api/inflight", RequestList)).requests
    return TopPicture(requests, (await ask(server, "GET", "/api/ps", MemoryUses)).models)


def _print(now: TopPicture) -> None:
    if now.requests:
        print_table(COLUMNS, [_cells(each) for each in now.requests], right=NUMBERS)
    else:
        say(NOTHING)
    if now.models:
        click.echo()
        print_table(MODEL_COLUMNS, [_model_cells(each) for each in now.models], right=MODEL_NUMBERS)


@contextmanager
def _screen() -> Generator[None]:
    """Draw on the terminal's other screen, so that this one is as before at the end."""
    click.echo(OTHER_SCREEN + HIDE, nl=False)
    try:
        yield
    finally:
        click.echo(SHOW + THIS_SCREEN, nl=False)


def _draw(now: TopPicture) -> None:
    """Write over the picture before, line by line and in one piece, so that nothing flickers."""
    width, height = shutil.get_terminal_size()
    lines = [NOTHING]
    if now.requests:
        lines = table_lines(COLUMNS, [_cells(each) for each in now.requests], NUMBERS, width)
    if now.models:
        lines += ["", *table_lines(MODEL_COLUMNS, [_model_cells(each) for each in now.models], MODEL_NUMBERS, width)]
    picture = "\n".join(line + REST_OF_LINE for line in lines[:height])
    click.echo(HOME + picture + REST_OF_SCREEN, nl=False)


def _cells(request: InFlightRequest) -> tuple[str, ...]:
    tokens, rate = request.tokens, request.tokens_per_second
    return (
        request.id,
        request.client,
        request.model,
        phase_words(request),
        "-" if tokens is UNSET else f"{'~' if request.tokens_estimated is True else ''}{tokens}",
        "-" if rate is UNSET else f"{rate:.1f}",
        "-" if request.slot is UNSET else str(request.slot),
        f"{request.elapsed_ms / 1000:.1f}",
    )


def phase_words(request: InFlightRequest) -> str:
    """Return the phase with what is known of it: the place in the queue, the time left, how much is read."""
    known: list[str] = []
    if request.queue_position is not UNSET:
        known.append(f"place {request.queue_position}")
    if request.expected_wait_ms is not UNSET:
        known.append(f"{request.expected_wait_ms / 1000:.0f} s left")
    if request.prompt_processed is not UNSET:
        total = "" if request.prompt_total is UNSET else f" of {request.prompt_total}"
        known.append(f"{request.prompt_processed}{total} read")
    return f"{request.phase} ({', '.join(known)})" if known else request.phase


def _model_cells(model: MemoryUse) -> tuple[str, ...]:
    return model.name, model.state, human_size(model.size), human_size(model.size_vram), str(model.queue)
