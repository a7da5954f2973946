"""Workers: processes, mostly on other machines, whose devices llama-server uses through llama.cpp's RPC.

llama-server itself aborts when a worker cannot be reached, says another version, or dies. So each is looked at before a
model is started, and the command that is built here names those alone that will do.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from appliance.errors import UsageError

DEFAULT_PORT = 50052
"""ggml-rpc-server's own."""
LAST_PORT = 65535
MAX_WORKERS = 16
"""GGML_RPC_MAX_SERVERS of llama.cpp."""

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")

_LOST = (
    "Remote RPC server crashed or returned malformed response",
    "RPC handshake failed for ",
    "RPC server version mismatch",
)
_RPC = re.compile(r"RPC[0-9]+")
_NO_CONNECTION = re.compile(r"ggml-rpc\.cpp:\d+: Failed to connect to ")

State = Literal["ready", "busy", "unreachable", "other"]
"""It answers; it accepts connections but serves another client, because it serves one at a time; no connection; the
other side is not a worker that can be understood.
"""
NAMES = ("llama-server", "llama-server.exe")
"""The first word of a ``cmd`` that stands for an engine of the program's own."""
AUTO = "auto"
"""The engine that the program itself chooses."""
RPC = "--rpc"
DEVICE_FLAGS = ("-dev", "--device")
CPU_ALONE = "none"
"""The value of ``--device`` for the processor alone."""
NO_DEBUGGER = {"GGML_NO_BACKTRACE": "1"}
"""For a process that may abort, as it does when it loses a worker: ggml then attaches no debugger to it."""


class WorkerDevice(Struct, frozen=True, kw_only=True):
    """One device of a worker, as the worker reports it. Sizes in bytes; the protocol has no name for it."""

    total: int
    free: int


class RpcWorker(Struct, frozen=True, kw_only=True):
    """The result of one look at an endpoint."""

    endpoint: str
    """``host:port``, as llama-server gets it."""
    state: State
    why: str = ""
    """The problem, in words; empty when it is ready."""
    version: str | None = None
    """Version of the RPC protocol, ``7.0.0``."""
    devices: tuple[WorkerDevice, ...] = ()


class WantedCrew(Struct, frozen=True, kw_only=True):
    """A model that is to be started with workers, of those at ``endpoints``.

    ``in_use`` tells which model runs on which endpoint; those are left out. ``fits`` says whether the model can do with
    so many.
    """

    model: str
    endpoints: Sequence[str]
    fits: Callable[[Sequence[RpcWorker]], bool]
    in_use: Mapping[str, str] = {}


class Crew(Struct, frozen=True, kw_only=True):
    """The workers that a model is started with, and a message for each one that is left out, one line each."""

    workers: tuple[RpcWorker, ...] = ()
    notes: tuple[str, ...] = ()


def endpoint_of(text: str) -> str:
    """Read ``HOST`` or ``HOST:PORT`` as ``host:port``. Raises UsageError for what llama-server could not reach."""
    host, port = split_endpoint(text)
    return f"{host}:{port}"


def split_endpoint(text: str) -> tuple[str, int]:
    """Split a worker's address into host and port; the default port is `DEFAULT_PORT`. Raises UsageError."""
    written = text.strip()
    if written.startswith("[") or written.count(":") > 1:
        raise UsageError(
            f"'{text}' is an IPv6 address, and llama.cpp's RPC supports only IPv4; write an IPv4 address or a name"
        )
    host, colon, port = written.partition(":")
    if not _HOST.fullmatch(host):
        raise UsageError(f"'{text}' is not the address of a worker; write HOST:PORT, as in 192.168.1.5:{DEFAULT_PORT}")
    if colon and not (re.fullmatch(r"\d{1,5}", port, re.ASCII) and 0 < int(port) <= LAST_PORT):
        raise UsageError(f"'{text}' has no port from 1 to {LAST_PORT}; write HOST:PORT, as in {host}:{DEFAULT_PORT}")
    return host.lower(), int(port) if colon else DEFAULT_PORT


def endpoints_of(text: str) -> tuple[str, ...]:
    """Read the value of ``--rpc``, each endpoint once. Raises UsageError."""
    found = tuple(dict.fromkeys(endpoint_of(part) for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError(f"'{text}' does not name a worker; write HOST:PORT, as in 192.168.1.5:{DEFAULT_PORT}")
    if len(found) > MAX_WORKERS:
        raise UsageError(f"{len(found)} workers are named, and llama.cpp takes {MAX_WORKERS} at most")
    return found


def lost_worker(lines: Iterable[str]) -> bool:
    """True if the last lines of a llama-server say that it aborted for want of a worker.

    Neither the engine nor the model is then to blame, and the same engine can be started again with the remaining
    workers.
    """
    return any(_NO_CONNECTION.search(line) or any(said in line for said in _LOST) for line in lines)


def room_of(workers: Sequence[RpcWorker]) -> Mapping[str, int]:
    """Return free bytes by device, ``rpc0``, ``rpc1`` ... in the order in which llama-server numbers them.

    Workers on one host each claim all of the host's memory: devices of one size that different workers have there count
    as one, in equal parts. The memory of a worker on this machine is part of this machine's memory.
    """
    claims: dict[tuple[str, int, int], dict[str, int]] = defaultdict(dict)
    number = 0
    for worker in workers:
        host = worker.endpoint.partition(":")[0]
        host = "localhost" if host.startswith("127.") else host
        alike: Counter[int] = Counter()
        for device in worker.devices:
            claims[host, device.total, alike[device.total]][f"rpc{number}"] = device.free
            alike[device.total] += 1
            number += 1
    shares = {name: min(claim.values()) // len(claim) for claim in claims.values() for name in claim}
    return {f"rpc{n}": shares[f"rpc{n}"] for n in range(number)}


def stands_for_engine(argv: Sequence[str]) -> bool:
    """True if a command begins with the bare name of llama-server."""
    return bool(argv) and argv[0] in NAMES


def workers_named(options: Sequence[str]) -> tuple[str, ...]:
    """Return the endpoints that options name with ``--rpc``; the last one counts. Raises UsageError."""
    values = _values(options, (RPC,))
    return endpoints_of(values[-1]) if values else ()


def command_on(
    command: Sequence[str], args: Sequence[str], options: Sequence[str], workers: Sequence[RpcWorker] = ()
) -> tuple[str, ...]:
    """The argv of an engine, whose own ``args`` choose its devices, with a model's ``options`` and these workers alone.

    ``--rpc`` goes in front of all others, which see only the devices that are known by then. ``--device`` names
    everything that is used: the workers' devices are put where llama-server itself would put them, in front. A
    ``--device`` in ``options`` is the user's and counts alone, but for devices of workers that are not there. Where a
    worker did not tell its devices the engine's are not named either: then it uses all that there are.
    """
    count = sum(len(worker.devices) for worker in workers)
    own = _without(options, (RPC,))
    if _values(own, DEVICE_FLAGS):
        there = {f"RPC{n}" for n in range(count)}
        chosen = _devices(own, lambda names: [name for name in names if name in there or not _RPC.fullmatch(name)])
    elif not all(worker.devices for worker in workers):
        chosen = (*_without(args, DEVICE_FLAGS), *own)
    else:
        chosen = (*_devices(args, lambda names: [*(f"RPC{n}" for n in range(count)), *names]), *own)
    told = (RPC, ",".join(worker.endpoint for worker in workers)) if workers else ()
    return (*command, *told, *chosen)


def _devices(words: Sequence[str], edit: Callable[[list[str]], list[str]]) -> tuple[str, ...]:
    """Edit the names behind ``--device``; if none is left it means the processor alone."""
    edited = list(words)
    for at, word in enumerate(words[:-1]):
        if word in DEVICE_FLAGS:
            names = [name for name in words[at + 1].split(",") if name != CPU_ALONE]
            edited[at + 1] = ",".join(edit(names)) or CPU_ALONE
    return tuple(edited)


def _without(options: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the options without those that take a value and have such a spelling."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in flags:
            next(words, None)
        else:
            kept.append(word)
    return tuple(kept)


def _values(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word in flags]
