"""Workers: other processes, mostly on other machines, whose devices llama-server uses through llama.cpp's RPC.

llama-server itself aborts when a worker cannot be reached, says another version, or dies. So each is looked at before a
model is started, and the model is given those alone that will do.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from appliance.errors import ModelFailedToStart, UsageError

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
_NO_CONNECTION = re.compile(r"ggml-rpc\.cpp:\d+: Failed to connect to ")

State = Literal["ready", "busy", "unreachable", "other"]
"""It answers; it accepts connections but serves another client, because it serves one at a time; no connection; the
other side is not a worker that can be understood.
"""


class WorkerDevice(Struct, frozen=True, kw_only=True):
    """One device of a worker, as the worker reports it. Sizes in bytes; the protocol has no name for it."""

    total: int
    free: int


class Worker(Struct, frozen=True, kw_only=True):
    """The result of one look at an endpoint."""

    endpoint: str
    """``host:port``, as llama-server gets it."""
    state: State
    why: str = ""
    """The problem, in words; empty when it is ready."""
    version: str | None = None
    """Version of the RPC protocol, ``7.0.0``."""
    devices: tuple[WorkerDevice, ...] = ()


class Crew(Struct, frozen=True, kw_only=True):
    """The workers that a model is started with, and a message for each one that is left out, one line each."""

    workers: tuple[Worker, ...] = ()
    notes: tuple[str, ...] = ()


def endpoint_of(text: str) -> str:
    """Read ``HOST`` or ``HOST:PORT`` as ``host:port``. Raises UsageError for addresses that llama-server could not
    reach.
    """
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


def agree(build_rpc: str | None, worker: Worker) -> str:
    """Return why this build and this worker cannot work together; empty when they can.

    A worker that has not reported its version is refused for that.
    """
    if build_rpc is None:
        return (
            "the engine has no RPC; install a build that has it ('llama-appliance engines install cpu', or "
            "'python3 llama-builds/build.py'), or choose one with engine:"
        )
    if worker.state != "ready":
        return worker.why
    if worker.version != build_rpc:
        return (
            f"worker {worker.endpoint} has RPC {worker.version}, but the engine here has {build_rpc}; "
            "install the same build on both machines"
        )
    return ""


def choose_workers(
    model_id: str, workers: Sequence[Worker], build_rpc: str | None, fits: Callable[[Sequence[Worker]], bool]
) -> Crew:
    """Choose the workers for a model. If some cannot be used, the model goes without them, provided that it ``fits``.

    Raises ModelFailedToStart, which names them and the remedy.
    """
    refused = {worker.endpoint: why for worker in workers if (why := agree(build_rpc, worker))}
    crew = tuple(worker for worker in workers if worker.endpoint not in refused)
    reasons = tuple(dict.fromkeys(refused.values()))
    if refused and not fits(crew):
        without = ", ".join(refused)
        raise ModelFailedToStart(model_id, f"{'; '.join(reasons)}; it does not fit without {without}")
    return Crew(workers=crew, notes=tuple(f"{why}; the model goes without it" for why in reasons))


def lost_worker(lines: Iterable[str]) -> bool:
    """True if the last lines of a llama-server say that it aborted for want of a worker.

    Neither the engine nor the model is then to blame, and the same engine can be started again with the remaining
    workers.
    """
    return any(_NO_CONNECTION.search(line) or any(said in line for said in _LOST) for line in lines)


def room_of(workers: Sequence[Worker]) -> Mapping[str, int]:
    """Return free bytes by device, ``rpc0``, ``rpc1`` ... in the order in which llama-server numbers them.

    Workers on one host each claim all of the host's memory: devices of one size that different workers have there count
    as one, in equal parts. The memory of a worker on this machine is part of this machine's memory.
    """
    claims: dict[tuple[str, int, int], dict[str, int]] = defaultdict(dict)
    number = 0
    for worker in workers:
        host = _machine_of(worker.endpoint)
        alike: Counter[int] = Counter()
        for device in worker.devices:
            claims[host, device.total, alike[device.total]][f"rpc{number}"] = device.free
            alike[device.total] += 1
            number += 1
    shares = {name: min(claim.values()) // len(claim) for claim in claims.values() for name in claim}
    return {f"rpc{n}": shares[f"rpc{n}"] for n in range(number)}


def _machine_of(endpoint: str) -> str:
    host = endpoint.partition(":")[0]
    return "localhost" if host.startswith("127.") else host
