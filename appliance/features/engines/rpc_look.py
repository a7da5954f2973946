"""Asks a worker of llama.cpp's RPC for its version and devices, and gathers those that a model is started with.

A worker serves one client at a time, in the order in which they came, and keeps two more waiting (b11434). So one that
serves a llama-server does not answer, and two abandoned questions fill its queue until that client
leaves: workers in use are not asked. And it dies of SIGPIPE when it answers a client that has closed its connection in
the ordinary way: a question that is given up ends with a reset, at which it goes on to the next.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping, Sequence

import trio

from appliance.core.rpc_workers import Crew, RpcWorker, WantedCrew, WorkerDevice, split_endpoint
from appliance.errors import ModelFailedToStart
from appliance.features.engines.core.rpc_protocol import BadWorkerAnswer, choose_workers, talk
from appliance.upstream.connect import system_words

LOOK_TIME = 2.0  # seconds that one look may take, the connection included
_LINGER = "hh" if sys.platform == "win32" else "ii"
RESET, ORDERLY = struct.pack(_LINGER, 1, 0), struct.pack(_LINGER, 0, 0)
"""Values of SO_LINGER: closing sends a reset, or an ordinary end."""
READ = 4096
PATIENCE = 3.0  # seconds in which a missed worker may come back: a dead one is started again after half a second
AGAIN = 0.25  # seconds until it is looked for once more


async def look_at_worker(endpoint: str, *, seconds: float = LOOK_TIME) -> RpcWorker:
    """Ask an idle worker for version, devices, memory. Raises UsageError for an invalid endpoint."""
    host, port = split_endpoint(endpoint)
    endpoint = f"{host}:{port}"
    no_worker = f"what listens at {endpoint} is no worker: it"
    connected = False
    try:
        with trio.fail_after(seconds):
            stream = await _connect(host, port)
            connected = True
            async with stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                version, devices = await _answers(stream)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ORDERLY)
    except trio.TooSlowError:
        if connected:
            why = f"worker {endpoint} takes connections and does not answer: it serves somebody else, or hangs"
            return RpcWorker(endpoint=endpoint, state="busy", why=why)
        missed = f"there was no connection within {seconds:g} s"
    except BadWorkerAnswer as error:
        return RpcWorker(endpoint=endpoint, state="other", why=f"{no_worker} {error}")
    except (OSError, trio.BrokenResourceError) as error:
        if connected:
            return RpcWorker(endpoint=endpoint, state="other", why=f"{no_worker} broke the connection")
        missed = _reason(error)
    else:
        return RpcWorker(endpoint=endpoint, state="ready", version=version, devices=devices)
    remedy = "is an rpc-worker of llama-appliance running there, and does its firewall let this machine in?"
    why = f"worker {endpoint} cannot be reached: {missed}; {remedy}"
    return RpcWorker(endpoint=endpoint, state="unreachable", why=why)


async def workers_for(
    wanted: WantedCrew, build_rpc: str | None, *, seconds: float = LOOK_TIME, patience: float = PATIENCE
) -> Crew:
    """The workers that a model is to be started with on a build that speaks ``build_rpc``, all looked at at once.

    Those in use are not asked. Where the model cannot do with the others, those that are away are given ``patience``
    seconds to come back. Raises ModelFailedToStart when it cannot do with those that are left, and UsageError for an
    invalid endpoint.
    """
    named, in_use = tuple(dict.fromkeys(wanted.endpoints)), wanted.in_use
    until = trio.current_time() + patience
    while True:
        workers = await _look_at_all(named, build_rpc, in_use, seconds)
        try:
            return choose_workers(wanted.model, workers, build_rpc, wanted.fits)
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


async def _answers(stream: trio.SocketStream) -> tuple[str, tuple[WorkerDevice, ...]]:
    """Return the worker's version and devices. Raises BadWorkerAnswer, and what streams raise."""
    asking = talk()
    asked = next(asking)
    while True:
        await stream.send_all(asked)
        data = await stream.receive_some(READ)
        if not data:
            raise BadWorkerAnswer(
                "ended the connection at the greeting, as other programs and llama.cpp before RPC 4 do"
            )
        try:
            asked = asking.send(data)
        except StopIteration as end:
            return end.value


def _reason(error: OSError | trio.BrokenResourceError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    number = error.errno if isinstance(error, OSError) else None
    return system_words(number).lower() if number else str(error)
