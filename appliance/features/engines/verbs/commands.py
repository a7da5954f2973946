"""``engines``: lists the llama.cpp builds with their standing, and which one is used. ``rpc-worker``: lends devices.

Verbs that change builds are in the modules beside this one.
"""

from __future__ import annotations

import ipaddress
import os
from functools import partial

import click
from msgspec import Struct

from appliance.cli.remote import RunningServer, home_options, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.core.rpc_workers import DEFAULT_PORT, split_endpoint
from appliance.core.settings import is_loopback
from appliance.engines.named import ENGINE_HELP
from appliance.errors import UsageError
from appliance.features.engines.choosing import keep
from appliance.features.engines.core.events import Forgotten
from appliance.features.engines.core.proofs import Proof
from appliance.features.engines.found import EngineFolders, find_engine, list_engines
from appliance.features.engines.rpc_server import RpcServing, Up, claim_port, keep_serving, server_program
from appliance.features.engines.table import BuildRow, SeatRow, Table
from appliance.features.engines.verbs.changes import install, pin, remove, rollback, use
from appliance.features.engines.verbs.sources import (
    note_named_engine,
    offer_in_words,
    opened,
    own_shelf,
    own_table,
    print_proof,
    refresh_server,
    seats_named,
    server_table,
)
from appliance.features.engines.verbs.update import update
from appliance.platform.children import open_children
from appliance.platform.console import EXIT_OURS, PROGRAM, harmless, say
from appliance.platform.machine import engine_threads
from appliance.platform.stopping import stop_signals
from appliance.settings import AsyncCommand
from appliance.store.shelf import alone
from appliance.trio_parts import beside

COLUMNS = ("", "SEAT", "DEVICE", "STANDING", "PROMPT", "ANSWER", "FROM", "WHY")
NUMBERS = ("PROMPT", "ANSWER")
DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
GRACE = 3.0
"""Seconds that the worker's process gets to end."""
FREE_PORT = ":0"


class Probed(Struct, frozen=True, kw_only=True):
    """The output of ``engines probe --json``."""

    machine: MachineLook | None
    engines: Table


class Proved(Struct, frozen=True, kw_only=True):
    """The output of ``engines prove --json``."""

    ok: bool
    proofs: list[Proof]


@click.group()
def engines() -> None:
    """Manage the llama.cpp builds of this machine: which work here, how fast, and which one is used.

    \b
    Examples:
      llama-appliance engines ls
      llama-appliance engines install vulkan
      llama-appliance engines use vulkan
    """


@engines.command()
@json_option
@server_options
async def ls(server: RunningServer, as_json: bool) -> int:
    """List every build on every device: whether it works, how fast it is, which one is used and why.

    \b
    Examples:
      llama-appliance engines ls
      llama-appliance engines ls --json
    """
    found = await server_table(server)
    if found is None:
        shelf = own_shelf()
        async with opened(shelf) as owner:
            found = await own_table(owner)
    if as_json:
        print_json(found)
    else:
        show_table(found)
    return 0


@engines.command()
@json_option
@home_options
async def probe(server: RunningServer, as_json: bool) -> int:
    """Look at the machine again, and ask every build for its devices; a running server does the same.

    \b
    Example:
      llama-appliance engines probe
    """
    shelf = own_shelf()
    async with opened(shelf) as owner:
        seen = await owner.probe()
        found = await own_table(owner)
    await refresh_server(server)
    if as_json:
        print_json(Probed(machine=seen, engines=found))
        return 0
    _show_machine(seen)
    show_table(found)
    return 0


@engines.command()
@click.argument("names", metavar="[SEAT|BUILD|BACKEND]...", nargs=-1)
@json_option
@home_options
async def prove(server: RunningServer, names: tuple[str, ...], as_json: bool) -> int:
    """Try builds on their devices now: all untried ones, or the named ones. The exit status is 1 if one fails.

    \b
    Examples:
      llama-appliance engines prove
      llama-appliance engines prove vulkan
    """
    shelf = own_shelf()
    async with opened(shelf) as owner:
        seats = seats_named(owner, names) if names else None
        if not as_json:
            say("each engine runs the starter model on its device; this takes some seconds each")
        proofs = await owner.prove(seats, _quiet if as_json else print_proof)
    await refresh_server(server)
    ok = all(proof.ok for proof in proofs)
    if as_json:
        print_json(Proved(ok=ok, proofs=proofs))
    elif not proofs:
        say("everything has been tried already; name a seat to try it again ('engines ls' lists them)")
    return 0 if ok else EXIT_OURS


def _quiet(proof: Proof) -> None:
    """Collects results for JSON, which is printed at the end."""


@engines.command()
@click.argument("builds", metavar="[BUILD]...", nargs=-1)
@home_options
async def forget(server: RunningServer, builds: tuple[str, ...]) -> int:
    """Forget what was found out about all builds, or about the named ones: proofs, failures, devices.

    Without a build, the last update that was refused is forgotten as well. Choices made with 'use' and 'pin' stay. The
    devices are listed again at once; the next start or 'engines prove' tries them again.

    \b
    Examples:
      llama-appliance engines forget
      llama-appliance engines forget linux-x64-vulkan/b11434
    """
    shelf = own_shelf()
    async with alone(shelf), opened(shelf) as owner:
        digests: tuple[str, ...] | None = None
        if builds:
            digests = tuple(engine.digest for engine in owner.engines if engine.id in builds)
            known = {engine.id for engine in owner.engines}
            for build in builds:
                if build not in known:
                    raise UsageError(f"there is no build '{build}' here; there is {', '.join(sorted(known)) or 'none'}")
        owner.apply(Forgotten(digests))
        await keep(shelf, owner)
        await owner.probe()
    await refresh_server(server)
    say(f"forgotten: the results for {', '.join(builds) or 'all engines'}")
    return 0


for verb in (install, use, pin, remove, rollback, update):
    engines.add_command(verb)


def show_table(found: Table) -> None:
    """Print the seats for people, in the order in which they would be used."""
    note_named_engine(dict(os.environ))
    rows = [(build, seat) for build in found.builds for seat in build.seats]
    place = {seat: index for index, seat in enumerate(found.order)}
    rows.sort(key=lambda row: place.get(row[1].id, len(place)))
    if rows:
        print_table(COLUMNS, [_cells(build, seat) for build, seat in rows], right=NUMBERS)
    for build in found.builds:
        if not build.seats:
            say(f"{build.id} finds no device to use here")
        if build.withdrawn:
            say(f"{build.id} is not used any more: {build.withdrawn}")
    say(f"\nIn use: {found.used or 'nothing'} - {found.reason}")
    if found.channel != "latest":
        say(f"Updates: {found.channel} builds alone, as chosen by 'engines update --channel'")
    for model, word in sorted(found.models.items()):
        say(f"For {model}: {word}, as chosen by 'engines use' or 'pin' with --model")
    for model, seat in sorted(found.running.items()):
        say(f"Running: {model} on {seat}")
    if found.update:
        say(f"An update to {found.update} is under way.")
    if found.trying:
        say(f"Under trial: {found.trying}")
    for offer in found.offers:
        say(offer_in_words(offer))
    for problem in found.problems:
        say(f"problem: {problem}")
    if found.server:
        say(f"(as the server at {found.server} sees it)")


def _cells(build: BuildRow, seat: SeatRow) -> tuple[str, ...]:
    return (
        "*" if seat.used else "",
        seat.id,
        ", ".join(seat.devices) or "-",
        seat.standing,
        _speed(seat.prompt_speed),
        _speed(seat.generation_speed),
        ", ".join(word for word in (build.source, build.role, build.release) if word),
        seat.why,
    )


def _speed(speed: float | None) -> str:
    return "-" if speed is None else f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"


def _show_machine(seen: MachineLook) -> None:
    memory = f"{human_size(seen.memory_available)} of {human_size(seen.memory_total)} free"
    click.echo(f"{seen.platform}, {seen.system} ({seen.environment})")
    click.echo(f"  processor  {seen.cpu} {seen.cpu_level}".rstrip() + f", {seen.cores} cores, {memory}")
    for gpu in seen.gpus:
        size = f", {human_size(gpu.total)}" if gpu.total else ""
        click.echo(f"  graphics   {gpu.name} ({gpu.driver} {gpu.driver_version}".rstrip() + f"{size})")
    for name, value in seen.hidden.items():
        click.echo(f"  hidden     {name}={value} is set, and may hide devices")
    for problem in seen.problems:
        click.echo(f"  problem    {problem}")


@click.command("rpc-worker")
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="IPv4 address and port.")
@click.option("--engine", metavar="ENGINE", help=ENGINE_HELP)
@click.option(
    "--device",
    metavar="NAME,..",
    help="Devices to lend, as the engine names them; default: graphics cards, or the CPU.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Number of CPU threads; default: as for models."
)
@click.option("--cache", is_flag=True, help="Keep received weights in files, so that they need not be sent again.")
@click.option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Listen where other machines can reach it, although it checks no key.",
)
def rpc_worker(
    listen: str, engine: str | None, device: str | None, threads: int | None, cache: bool, allow_unauthenticated: bool
) -> AsyncCommand:
    """Lend this machine's devices and memory to models on another machine, by llama.cpp's RPC.

    The protocol has no keys and no encryption: everyone who reaches the port can use, read and crash the worker. Lend
    it through an SSH tunnel or a VPN. docs/rpc.md explains how the other machine uses it.

    \b
    Examples:
      llama-appliance rpc-worker                                         # for an SSH tunnel
      llama-appliance rpc-worker --listen 10.8.0.2:50052 --allow-unauthenticated
    """
    host, port = _address(listen)
    if not allow_unauthenticated and not is_loopback(host):
        raise UsageError(
            f"refusing to listen on {host}, which other machines can reach: llama.cpp's RPC has neither keys nor "
            "encryption; use an SSH tunnel to one on 127.0.0.1, or a VPN's address with --allow-unauthenticated"
        )
    serving = RpcServing(
        program=server_program(_engine(engine)),
        host=host,
        port=claim_port(host, port),
        devices=tuple(name.strip() for name in device.split(",") if name.strip()) if device is not None else (),
        threads=threads or engine_threads(),
        cache=cache,
    )
    return _serve(serving)


async def _serve(serving: RpcServing) -> int:
    refused: UsageError | None = None
    with stop_signals(lambda: GRACE) as stop, stop.at_once:
        async with open_children() as children, beside() as nursery:

            async def serve() -> None:
                nonlocal refused
                try:
                    await keep_serving(serving, children, up=partial(_print_address, serving), log=say)
                except UsageError as error:
                    refused = error
                    stop.asked.set()

            nursery.start_soon(serve)
            await stop.asked.wait()
    if refused is not None:
        raise refused
    return 0


def _print_address(serving: RpcServing, up: Up) -> None:
    worker = up.worker
    sizes = [f"{each.total >> 20} MiB, {each.free >> 20} MiB free" for each in worker.devices]
    devices = "; ".join(up.devices or sizes) or "busy already"
    version = f"RPC {worker.version}, " if worker.version is not None else ""
    click.echo(harmless(f"{PROGRAM} rpc-worker listening on {serving.host}:{serving.port}: {version}{devices}"))


def _engine(named: str | None) -> Engine:
    """Return the named engine, or the first that can lend devices; else the first one, for the error to name it."""
    if named is not None or EngineFolders.of_this_machine().named is not None:
        return find_engine(named)
    able = (each for each in list_engines() if each.rpc is not None and not each.damage)
    return next(able, None) or find_engine(None)


def _address(listen: str) -> tuple[str, int]:
    """Return the address to bind. Raises UsageError for anything but an IPv4 address."""
    free = listen.endswith(FREE_PORT)
    host, port = split_endpoint(listen.removesuffix(FREE_PORT) if free else listen)
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(
            f"--listen {listen}: {host} is not an IPv4 address, and ggml-rpc-server takes nothing else; 0.0.0.0 is all "
            "addresses of this machine"
        ) from None
    return host, 0 if free else port
