"""A worker for other machines: one process of llama.cpp's ``ggml-rpc-server``, started again when it dies.

``rpc-worker`` is the verb that runs it.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import trio

from appliance.core.engine import Engine
from appliance.core.rpc_workers import DEFAULT_PORT, NO_DEBUGGER, split_endpoint
from appliance.core.settings import is_loopback
from appliance.engines.named import ENGINE_HELP
from appliance.errors import UsageError
from appliance.features.engines.core.listing import LINE
from appliance.features.engines.found import find_engine, is_named, list_engines
from appliance.features.engines.rpc_look import look_at_worker
from appliance.platform.children import Child, Children, describe_status, inherited_env, open_children
from appliance.platform.console import PROGRAM as OURS
from appliance.platform.console import harmless, say
from appliance.platform.machine import engine_threads
from appliance.platform.ports import LOOPBACK
from appliance.platform.process import Command, LineSink, StopSteps, before_end, open_process, text_of
from appliance.platform.stopping import stop_signals
from appliance.trio_parts import BackOff, Changed, wait_any

PROGRAM = "ggml-rpc-server.exe" if sys.platform == "win32" else "ggml-rpc-server"
WITHOUT_SIGPIPE = () if sys.platform == "win32" else ("/bin/sh", "-c", "trap '' PIPE; exec \"$@\"", PROGRAM)
"""A worker leaves SIGPIPE at its default, and a client that gives up waiting would end it (b11434): the shell ignores
it.
"""

START_TIME = 90.0  # seconds within which it must answer: drivers of graphics cards take their time at first
LOOK_PAUSE = 0.05
STOP_TIME = 2.0  # seconds that it gets to end by itself
REST_TIME = 5.0  # seconds to read the rest of its output, where something that it left behind holds the pipe
NAMES_TIME = 1.0  # seconds in which the lines that name its devices must have come, once it answers
TAIL = 20  # lines of its output that are kept, and searched for what went wrong

ANYWHERE = "0.0.0.0"
DEFAULT_LISTEN = f"{LOOPBACK}:{DEFAULT_PORT}"
FREE_PORT = ":0"
GRACE = 3.0  # seconds that the worker's process gets to end


def server_program(engine: Engine) -> str:
    """The ``ggml-rpc-server`` that goes with an engine. Raises UsageError where there is none."""
    program = Path(engine.command[0]).resolve().with_name(PROGRAM)
    if len(engine.command) == 1 and program.is_file():
        return str(program)
    raise UsageError(
        f"engine {engine.id or engine.name} has no {PROGRAM}; 'llama-appliance engines install cpu' or "
        "'python3 llama-builds/build.py' gets a build that has, and --engine names another one"
    )


def claim_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises UsageError when it cannot be listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
            return int(probe.getsockname()[1])
        except OSError as cause:
            advice = {
                errno.EADDRINUSE: "another program has it, perhaps another rpc-worker; change --listen",
                errno.EADDRNOTAVAIL: "it is no address of this machine; --listen 0.0.0.0:PORT takes all there are",
                errno.EACCES: "ports below 1024 need privileges; choose another one",
            }.get(cause.errno or 0, cause.strerror or str(cause))
            raise UsageError(f"cannot listen on {host}:{port}: {advice}") from None


def worker_argv(
    program: str, host: str, port: int, threads: int, *, devices: Sequence[str] = (), cache: bool = False
) -> tuple[str, ...]:
    """Return the command of a worker. ``devices`` are names as the engine lists them.

    Without ``devices`` it serves all graphics cards, or the processor where there is none. ``cache``: tensors that were
    sent are kept in files, so that they need not be sent again.
    """
    where = ("-H", host, "-p", str(port), "-t", str(threads))
    named = ("-d", ",".join(devices)) if devices else ()
    return (*WITHOUT_SIGPIPE, program, *where, *named, *(("-c",) if cache else ()))


async def _keep_serving(argv: tuple[str, ...], host: str, port: int) -> None:
    """Own the process until cancelled. Raises UsageError when it does not come to answering the first time."""
    back_off, was_up = BackOff(), False
    async with open_children() as children:
        while True:
            run = WorkerRun(host, port)
            why = await run.run(argv, children)
            was_up = was_up or run.was_up
            if not was_up:
                raise UsageError(why)  # it is not tried again, because its command line is to blame
            wait = back_off.pause()
            say(f"{why}; it is started again in {wait:g} s")
            await trio.sleep(wait)


class WorkerRun:
    """One process from spawn to reap. Its output is shown."""

    def __init__(self, host: str, port: int) -> None:
        self.was_up = False
        self._where = f"{host}:{port}"
        self.endpoint = f"{LOOPBACK if host == ANYWHERE else host}:{port}"  # where this machine reaches it
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._named: list[str] = []  # the lines in which it names its devices
        self._more = Changed()
        self._silent = False

    async def run(self, argv: tuple[str, ...], children: Children) -> str:
        """Run the worker, and describe its end in words. Cancelling ends it."""
        env, ending = inherited_env() | NO_DEBUGGER, StopSteps(asked=STOP_TIME)
        command = Command(argv=argv, env=env, stdin=None, ending=ending)
        async with open_process(children, command, LineSink(self._line), rest=REST_TIME) as child:
            await before_end(child, partial(self._see_it_up, child))
            status = await child.wait()
        return self._why(status)

    def _line(self, line: bytes) -> None:
        text = text_of(line)
        self._tail.append(text)
        if re.fullmatch(LINE, text):
            self._named.append(text.strip())
            self._more.wake()
        say(text)

    async def _see_it_up(self, child: Child) -> None:
        """Look until it answers. A worker that serves a client does not answer, but is up."""
        with trio.move_on_after(START_TIME):
            worker = await look_at_worker(self.endpoint)
            while worker.state == "unreachable":
                await trio.sleep(LOOK_PAUSE)
                worker = await look_at_worker(self.endpoint)
            # The names come by the output and the answer by the socket, so either may be first.
            with trio.move_on_after(NAMES_TIME):
                while len(self._named) < len(worker.devices):
                    await self._more.wait()
            self.was_up = True
            sizes = [f"{each.total >> 20} MiB, {each.free >> 20} MiB free" for each in worker.devices]
            devices = "; ".join(self._named or sizes) or "busy already"
            version = f"RPC {worker.version}, " if worker.version is not None else ""
            click.echo(harmless(f"{OURS} rpc-worker listening on {self._where}: {version}{devices}"))
            return
        self._silent = True
        child.kill()

    def _why(self, status: int) -> str:
        where = f"{PROGRAM} on {self._where}"
        if self._silent:
            return f"{where} did not answer within {START_TIME:g} s"
        unknown = next((line for line in self._tail if "unknown device: " in line), None)
        if unknown is not None:
            known = ", ".join(self._named) or "none"
            return f"there is no device '{unknown.partition('unknown device: ')[2]}'; this engine has: {known}"
        last = next((line.strip() for line in reversed(self._tail) if line.strip()), "")
        return f"{where} ended with {describe_status(status)}" + (f": {last}" if last else "")


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
async def rpc_worker(
    listen: str, engine: str | None, device: str | None, threads: int | None, cache: bool, allow_unauthenticated: bool
) -> int:
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
    program, port = server_program(_engine(engine)), claim_port(host, port)
    devices = [name.strip() for name in (device or "").split(",") if name.strip()]
    argv = worker_argv(program, host, port, threads or engine_threads(), devices=devices, cache=cache)
    with stop_signals(lambda: GRACE) as stop, stop.at_once:
        await wait_any(partial(_keep_serving, argv, host, port), stop.asked.wait)
    return 0


def _engine(named: str | None) -> Engine:
    """Return the named engine, or the first that can lend devices; else the first one, for the error to name it."""
    if is_named(named):
        return find_engine(named)
    able = (each for each in list_engines() if each.rpc is not None and not each.damage)
    return next(able, None) or find_engine(None)


def _address(listen: str) -> tuple[str, int]:
    """Return the address to bind. Raises UsageError for anything but an IPv4 address."""
    free = listen.endswith(FREE_PORT)
    host, port = split_endpoint(listen.removesuffix(FREE_PORT))
    host = LOOPBACK if host == "localhost" else host
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(
            f"--listen {listen}: {host} is not an IPv4 address, and ggml-rpc-server takes nothing else; 0.0.0.0 is all "
            "addresses of this machine"
        ) from None
    return host, 0 if free else port
