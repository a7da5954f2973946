"""Asks a build for its devices and options, and a worker of llama.cpp's RPC for its own.

A build is asked in a throw-away process.

A worker serves one client at a time, in the order in which they came, and keeps two more waiting (b11434). So one that
serves a llama-server does not answer, and two abandoned questions fill its queue until that client
leaves: workers in use are not asked. And it dies of SIGPIPE when it answers a client that has closed its connection in
the ordinary way: a question that is given up ends with a reset, at which it goes on to the next.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence

import trio

from appliance.core.engine import Engine, Manual
from appliance.core.engines.listing import DeviceListing, parse_listing, parse_manual, printable
from appliance.core.engines.proofs import Fault
from appliance.core.engines.trials import LOST_LIBRARY
from appliance.core.engines.workers import (
    NO_DEBUGGER,
    BadWorkerAnswer,
    Crew,
    Questions,
    RpcWorker,
    choose_workers,
    split_endpoint,
)
from appliance.errors import ModelFailedToStart
from appliance.platform.children import Children, describe_status, inherited_env
from appliance.platform.process import MOST, Ran, run_to_end
from appliance.trio_parts import lacking
from appliance.upstream.connect import system_words

LIMIT = 90.0 if sys.platform == "win32" else 30.0
"""Seconds. Virus scanners read a build of half a gigabyte before its first start on Windows."""
LIST, HELP = "--list-devices", "--help"
MORE_WORDS = ("-lv", "5")
"""Before ``--list-devices``, which acts as soon as it is read: what the log then says of Vulkan and CUDA devices."""
SIGNALLED = 128
"""A shell between us and the program says so much more than the signal's number."""
LOOK_TIME = 2.0
"""Seconds that one look may take, the connection included."""
_LINGER = "hh" if sys.platform == "win32" else "ii"
RESET, ORDERLY = struct.pack(_LINGER, 1, 0), struct.pack(_LINGER, 0, 0)
"""Values of SO_LINGER: closing sends a reset, or an ordinary end."""
READ = 4096
PATIENCE = 3.0
"""Seconds in which a worker that is missed may come back: one that died is started again after half a second."""
AGAIN = 0.25
"""Seconds until it is looked for once more."""


async def list_devices(engine: Engine, children: Children, *, seconds: float | None = None) -> DeviceListing:
    """Ask the build which devices it can use, within ``seconds`` or else `LIMIT`. Never raises for what it does."""
    limit = LIMIT if seconds is None else seconds
    # A crash is not looked at with a debugger, which ggml starts where there is one.
    env = {**inherited_env(), **NO_DEBUGGER}
    try:
        ran = await run_to_end(children, (*engine.command, *MORE_WORDS, LIST), env, seconds=limit)
        if ran.status and MORE_WORDS[0].encode() in ran.errors:  # a program that does not know how to say more
            ran = await run_to_end(children, (*engine.command, LIST), env, seconds=limit)
    except (OSError, ValueError) as error:
        # A machine that has no process or file left says nothing of the build. It did not answer, as a late one.
        return DeviceListing(fault="hang" if lacking(error) else "damaged", why=f"it cannot be started: {error}")
    log = ran.errors.decode(errors="replace")
    wrong = _wrong(ran, log, limit)
    if wrong is not None:
        return DeviceListing(fault=wrong[0], why=wrong[1])
    return parse_listing(ran.output.decode(errors="replace"), log)


async def read_manual(engine: Engine, children: Children) -> Manual | None:
    """Ask the build for its options. Never raises for what it does; a build that does not say has none.

    None: the build did not answer in time, or the machine had no process left to ask it.
    """
    try:
        ran = await run_to_end(children, (*engine.command, HELP), inherited_env(), seconds=LIMIT)
    except (OSError, ValueError) as error:
        return None if lacking(error) else Manual()
    if ran.status is None and not ran.flooded:
        return None
    return parse_manual(ran.output.decode(errors="replace")) if ran.status == 0 else Manual()


def _wrong(ran: Ran, log: str, limit: float) -> tuple[Fault, str] | None:
    """The fault, in a word and in a line; None: it ended well."""
    if ran.flooded:
        return "list", f"it printed more than {MOST >> 20} MiB when asked for its devices"
    if ran.status is None:
        return "hang", f"it did not list its devices within {limit:g} s"
    status = ran.status
    if status == 0:
        return None
    last = next((printable(line) for line in reversed(log.splitlines()) if line.strip()), "")
    if lost := next((line for line in (*log.splitlines(), describe_status(status)) if LOST_LIBRARY.search(line)), ""):
        return "missing", printable(lost)
    if status in (126, 127) and sys.platform != "win32":
        return "damaged", f"it cannot be executed: {last}"
    if sys.platform != "win32" and SIGNALLED < status <= SIGNALLED + 64:
        status = SIGNALLED - status
    how = describe_status(status)
    crashed = status < 0 or status & 0xFFFFFFFF >= 0x80000000
    return ("crash" if crashed else "list"), f"{how} when asked for its devices" + (f": {last}" if last else "")


async def look_at_worker(endpoint: str, *, seconds: float = LOOK_TIME) -> RpcWorker:
    """Ask an idle worker for version, devices, memory. Raises UsageError for an invalid endpoint."""
    host, port = split_endpoint(endpoint)
    endpoint, questions = f"{host}:{port}", Questions()
    connected = False
    try:
        with trio.fail_after(seconds):
            stream = await _connect(host, port)
            connected = True
            async with stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                await _greet(stream, questions)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ORDERLY)
    except trio.TooSlowError:
        if connected:
            why = f"worker {endpoint} takes connections and does not answer: it serves somebody else, or hangs"
            return RpcWorker(endpoint=endpoint, state="busy", why=why)
        return _unreachable(endpoint, f"there was no connection within {seconds:g} s")
    except BadWorkerAnswer as error:
        return RpcWorker(endpoint=endpoint, state="other", why=f"what listens at {endpoint} is no worker: it {error}")
    except (OSError, trio.BrokenResourceError) as error:
        if connected:
            why = f"what listens at {endpoint} is no worker: it broke the connection"
            return RpcWorker(endpoint=endpoint, state="other", why=why)
        return _unreachable(endpoint, _reason(error))
    return RpcWorker(endpoint=endpoint, state="ready", version=str(questions.version), devices=tuple(questions.devices))


async def workers_for(
    model_id: str,
    endpoints: Sequence[str],
    build_rpc: str | None,
    *,
    fits: Callable[[Sequence[RpcWorker]], bool],
    in_use: Mapping[str, str],
    seconds: float = LOOK_TIME,
    patience: float = PATIENCE,
) -> Crew:
    """The workers that a model is to be started with on a build that speaks ``build_rpc``, all looked at at once.

    ``in_use`` tells which model runs on which endpoint; those are not asked, and left out. ``fits`` says whether the
    model can do with so many; where it cannot, those that are away are given ``patience`` seconds to come back. Raises
    ModelFailedToStart when it cannot do with those that are left, and UsageError for an invalid endpoint.
    """
    named = tuple(dict.fromkeys(endpoints))
    until = trio.current_time() + patience
    while True:
        workers = await _look_at_all(named, build_rpc, in_use, seconds)
        try:
            return choose_workers(model_id, workers, build_rpc, fits)
        except ModelFailedToStart:
            away = [each for each in workers if each.state in ("unreachable", "busy") and each.endpoint not in in_use]
            if not away or trio.current_time() >= until:
                raise
        await trio.sleep(AGAIN)


async def _look_at_all(
    endpoints: Sequence[str], build_rpc: str | None, in_use: Mapping[str, str], seconds: float
) -> list[RpcWorker]:
    seen: dict[str, RpcWorker] = {}

    async def see(endpoint: str) -> None:
        seen[endpoint] = await look_at_worker(endpoint, seconds=seconds)

    async with trio.open_nursery() as nursery:
        for endpoint in endpoints:
            if endpoint in in_use:
                why = f"worker {endpoint} serves model '{in_use[endpoint]}', and one at a time; unload that one first"
                seen[endpoint] = RpcWorker(endpoint=endpoint, state="busy", why=why)
            elif build_rpc is None:
                seen[endpoint] = RpcWorker(endpoint=endpoint, state="other", why="it was not asked")
            else:
                nursery.start_soon(see, endpoint)
    return [seen[endpoint] for endpoint in endpoints]


async def _connect(host: str, port: int) -> trio.SocketStream:
    """As llama.cpp's RPC does: by IPv4, the first address alone. Raises OSError."""
    found = await trio.socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        await sock.connect(found[0][4])
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def _greet(stream: trio.SocketStream, questions: Questions) -> None:
    """Raises RpcError, and what streams raise."""
    await stream.send_all(questions.begin())
    while not questions.done:
        data = await stream.receive_some(READ)
        if not data:
            raise BadWorkerAnswer(
                "ended the connection at the greeting, as other programs and llama.cpp before RPC 4 do"
            )
        if reply := questions.receive(data):
            await stream.send_all(reply)


def _unreachable(endpoint: str, why: str) -> RpcWorker:
    return RpcWorker(
        endpoint=endpoint,
        state="unreachable",
        why=(
            f"worker {endpoint} cannot be reached: {why}; is an rpc-worker of llama-appliance running there, "
            "and does its firewall let this machine in?"
        ),
    )


def _reason(error: OSError | trio.BrokenResourceError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    number = error.errno if isinstance(error, OSError) else None
    return system_words(number).lower() if number else str(error)
