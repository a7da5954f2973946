"""``pool``: several boxes as one. Every command asks the running server, which does the work."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.core.settings import in_url
from appliance.features.pool.core.shapes import (
    CreatePool,
    DrainBox,
    JoinPool,
    LeavePool,
    PoolBox,
    PoolInvitation,
    PoolRotation,
    PoolState,
    RotatePool,
)
from appliance.features.pool.export_verb import export
from appliance.platform.console import say

BOXES = ("BOX", "STATE", "LOADED", "HAS", "QUEUE", "ADDRESS")
MOST_MODELS = 5  # names of models in one cell of the table


@click.group()
def pool() -> None:
    """Make several boxes one: each answers for the models of all.

    \b
    Examples:
      llama-appliance pool create                  # on the first box; prints a code
      llama-appliance pool join LAP1-...           # on the next one, within ten minutes
      llama-appliance pool ls
    """


pool.add_command(export)


def _prints(
    command: Callable[..., Awaitable[PoolInvitation | PoolRotation | PoolState]],
) -> Callable[..., Awaitable[int]]:
    """Give a command the options of all of them, and print what it returns."""

    @functools.wraps(command)
    async def printing(*, as_json: bool, **given: object) -> int:
        found = await command(**given)
        if as_json:
            print_json(found)
        elif isinstance(found, PoolInvitation):
            until = datetime.fromtimestamp(found.until, UTC).astimezone()
            say(f"on the other box, until {until:%H:%M}:")
            click.echo(f"llama-appliance pool join {found.code}")
        elif isinstance(found, PoolRotation):
            click.echo(f"new keys: this box{''.join(f', {name}' for name in found.reached)}")
            for name in found.missed:
                fix = "'llama-appliance pool leave' there, then join it again under a new name"
                say(f"{name} did not get the new keys: {fix}")
        else:
            _print_state(found)
        return 1 if isinstance(found, PoolRotation) and found.missed else 0

    return server_options(json_option(printing))


def _box_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options that say how other boxes know and reach this one."""
    command = click.option("--port", type=click.IntRange(0, 65533), help="The port for other boxes (4280).")(command)
    command = click.option(
        "--address",
        "addresses",
        multiple=True,
        metavar="ADDRESS",
        help="Where other boxes reach this one; may be repeated. Default: the machine's own addresses.",
    )(command)
    return click.option("--name", metavar="NAME", help="This box's name in the pool. Default: the host's.")(command)


@pool.command()
@_box_options
@click.option("--bus", default="", metavar="URL", help="A NATS server that is there already.")
@_prints
async def create(
    server: RunningServer, name: str | None, addresses: tuple[str, ...], port: int | None, bus: str
) -> PoolInvitation:
    """Make a pool with this box in it, and print a code that lets another box in.

    \b
    Example:
      llama-appliance pool create --name office --address 192.168.1.20
    """
    asked = CreatePool(name=name, addresses=addresses, port=port, bus=bus)
    return await ask(server, "POST", "/api/pool/create", PoolInvitation, asked)


@pool.command()
@_prints
async def invite(server: RunningServer) -> PoolInvitation:
    """Print a code that lets one more box in. It is good once, and for ten minutes.

    \b
    Example:
      llama-appliance pool invite
    """
    return await ask(server, "POST", "/api/pool/invite", PoolInvitation)


@pool.command()
@click.argument("code")
@_box_options
@click.option("--dials-out", is_flag=True, help="No other box can reach this one.")
@_prints
async def join(
    server: RunningServer, code: str, name: str | None, addresses: tuple[str, ...], port: int | None, dials_out: bool
) -> PoolState:
    """Join the pool of CODE, which 'pool create' or 'pool invite' has printed on another box.

    \b
    Example:
      llama-appliance pool join LAP1-...
    """
    asked = JoinPool(code=code, name=name, addresses=addresses, port=port, dials_out=dials_out)
    return await ask(server, "POST", "/api/pool/join", PoolState, asked)


@pool.command()
@_prints
async def ls(server: RunningServer) -> PoolState:
    """List the boxes of the pool, as this one sees them.

    \b
    Example:
      llama-appliance pool ls --json
    """
    return await ask(server, "GET", "/api/pool", PoolState)


@pool.command()
@click.argument("box", required=False)
@_prints
async def leave(server: RunningServer, box: str | None) -> PoolState:
    """Take BOX out of the pool for good; without a name, this one.

    A box that was lost or stolen still has the keys: use 'pool rotate --without BOX' for that one.

    \b
    Example:
      llama-appliance pool leave
    """
    return await ask(server, "POST", "/api/pool/leave", PoolState, LeavePool(box))


@pool.command()
@click.argument("box")
@click.option("--undo", is_flag=True, help="Give it work again.")
@_prints
async def drain(server: RunningServer, box: str, undo: bool) -> PoolState:
    """Give BOX no new work. It finishes what it has, and stays in the pool.

    \b
    Example:
      llama-appliance pool drain b2
    """
    asked = DrainBox(box=box, drained=not undo)
    return await ask(server, "POST", "/api/pool/drain", PoolState, asked)


@pool.command()
@click.option("--without", multiple=True, metavar="BOX", help="A box that gets no new keys; may be repeated.")
@_prints
async def rotate(server: RunningServer, without: tuple[str, ...]) -> PoolRotation:
    """Give all boxes new keys, after a box or a copy of its files was lost. Old keys open no door any more.

    \b
    Example:
      llama-appliance pool rotate --without laptop
    """
    return await ask(server, "POST", "/api/pool/rotate", PoolRotation, RotatePool(without=without))


def _print_state(state: PoolState) -> None:
    if state.pool is None:
        click.echo("this box is in no pool; 'llama-appliance pool create' makes one, 'pool join CODE' joins one")
    else:
        print_table(BOXES, [_cells(box, cut_off=state.cut_off) for box in state.boxes], right=("QUEUE",))
    for problem in state.problems:
        say(f"{problem.text}: {problem.fix}")


def _cells(box: PoolBox, *, cut_off: bool) -> Sequence[str]:
    state = "this box" if box.me else {True: "up", False: "down", None: "unknown"}[box.up]
    if cut_off:
        state = "this box, cut off" if box.me else f"{state} when last seen" if box.up else state
    loaded = [model.id for model in box.models if model.state not in ("unloaded", "downloaded")]
    address = in_url(box.addresses[0]) if box.addresses else "-"
    return (
        box.name,
        f"{state}, drained" if box.drained else state,
        _some(loaded),
        _some([model.id for model in box.models]),
        str(box.queue),
        f"{address}:{box.port}",
    )


def _some(names: Sequence[str]) -> str:
    more = (f"{len(names) - MOST_MODELS} more",) if len(names) > MOST_MODELS else ()
    return ", ".join((*names[:MOST_MODELS], *more)) or "-"
