"""``rpc-worker``: lends this machine's devices to llama-servers on other machines."""

from __future__ import annotations

import ipaddress
from functools import partial

import click
import trio

from appliance.core.engines.workers import DEFAULT_PORT, split_endpoint
from appliance.core.settings import is_loopback
from appliance.engines.found import ENGINE_HELP, Engine, Places, find_engine, list_engines
from appliance.errors import UsageError
from appliance.fleet.rpc_server import Serving, Up, claim_port, keep_serving, server_program
from appliance.platform.children import open_children
from appliance.platform.console import PROGRAM, harmless, say
from appliance.platform.machine import engine_threads
from appliance.platform.stopping import stop_signals
from appliance.settings import AsyncCommand

DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
GRACE = 3.0
"""Seconds that the worker's process gets to end."""
FREE_PORT = ":0"


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
    serving = Serving(
        program=server_program(_engine(engine)),
        host=host,
        port=claim_port(host, port),
        devices=tuple(name.strip() for name in device.split(",") if name.strip()) if device is not None else (),
        threads=threads or engine_threads(),
        cache=cache,
    )
    return partial(_serve, serving)


async def _serve(serving: Serving) -> int:
    refused: UsageError | None = None
    with stop_signals(lambda: GRACE) as stop, stop.at_once:
        async with open_children() as children, trio.open_nursery() as nursery:

            async def serve() -> None:
                nonlocal refused
                try:
                    await keep_serving(serving, children, up=partial(_tell, serving), log=say)
                except UsageError as error:
                    refused = error
                    stop.asked.set()

            nursery.start_soon(serve)
            await stop.asked.wait()
            nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused
    return 0


def _tell(serving: Serving, up: Up) -> None:
    worker = up.worker
    sizes = [f"{each.total >> 20} MiB, {each.free >> 20} MiB free" for each in worker.devices]
    devices = "; ".join(up.devices or sizes) or "busy already"
    version = f"RPC {worker.version}, " if worker.version is not None else ""
    click.echo(harmless(f"{PROGRAM} rpc-worker listening on {serving.host}:{serving.port}: {version}{devices}"))


def _engine(named: str | None) -> Engine:
    """Return the named engine, or the first that can lend devices; else the first one, for the error to name it."""
    if named is not None or Places.of_this_machine().named is not None:
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
