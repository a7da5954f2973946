"""The measurements: what one run of each yields. Every number is from this run; goals are ratios within it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from contestants import contestant
from peers import Peers, run_json, run_streams
from processes import cpu, free_port, get, memory, running, wait_accepting, wait_listening

CONNECTIONS = 48
JSON_CONNECTIONS = 16
IDLE_AFTER = 2.0
"""Seconds at rest before memory is read."""


class Plan(NamedTuple):
    """How much of everything: streams per connection, seconds of JSON, starts, swaps of each kind, pairs to compare."""

    rounds: int
    seconds: int
    starts: int
    swaps: int
    pairs: int


FULL = Plan(rounds=6, seconds=4, starts=7, swaps=15, pairs=1000)
QUICK = Plan(rounds=2, seconds=2, starts=3, swaps=3, pairs=200)


class Relayed(NamedTuple):
    """What relaying costs: CPU microseconds of the relay for each chunk and JSON request, and requests/s."""

    chunk_us: float
    children_us: float
    """Of the program's children (the upstream is one of them) for each chunk; a relay's workers count as itself."""
    json_rps: float
    json_us: float


def relay(name: str, peers: Peers, plan: Plan) -> Relayed:
    """One contestant under both loads, warmed up before each."""
    with contestant(name, peers) as running_relay:
        run_streams(peers, running_relay.port, 4, 1)
        before = cpu(running_relay.process)
        chunks = run_streams(peers, running_relay.port, CONNECTIONS, plan.rounds)
        used = cpu(running_relay.process) - before
        run_json(peers, running_relay.port, JSON_CONNECTIONS, 1)
        before_json = cpu(running_relay.process)
        rps = run_json(peers, running_relay.port, JSON_CONNECTIONS, plan.seconds)
        used_json = cpu(running_relay.process) - before_json
        scale = 1e6 / chunks
        own, below = (used.own, used.below) if running_relay.upstream_below else (used.own + used.below, 0.0)
        json_own = used_json.own if running_relay.upstream_below else used_json.own + used_json.below
        return Relayed(own * scale, below * scale, rps, json_own / (rps * plan.seconds) * 1e6)


class Start(NamedTuple):
    """The medians of several starts; memory of one, at rest."""

    listening: float
    """Seconds from the command until it accepts connections."""
    answering: float
    """Seconds from the command to the first answer of a control route."""
    rss_unasked: float
    """MB resident while no control route was asked for, the process itself."""
    rss: float
    """MB resident after that."""
    rss_below: float
    """MB resident, its helpers."""


def start(argv: Callable[[int], Sequence[str]], plan: Plan, folder: Path) -> Start:
    """The program at rest: how soon it listens, and what it weighs without a model. ``argv`` is for a port."""
    times: list[tuple[float, float]] = []
    for _ in range(plan.starts):
        with _started(argv, folder) as (process, port):
            listening = wait_accepting(process, port)
            times.append((listening, listening + wait_listening(process, port)))
    with _started(argv, folder) as (process, port):
        wait_accepting(process, port)
        time.sleep(IDLE_AFTER)
        unasked, _ = memory(process)
        for path in ("/health", "/v1/models"):
            get(port, path)
        time.sleep(IDLE_AFTER)
        own, below = memory(process)
    listening, answering = (statistics.median(moments) for moments in zip(*times, strict=True))
    return Start(listening, answering, unasked / 1e6, own / 1e6, below / 1e6)


@contextmanager
def _started(argv: Callable[[int], Sequence[str]], folder: Path) -> Generator[tuple[psutil.Popen, int]]:
    port = free_port()
    with running(argv(port), folder / "serve.log") as process:
        yield process, port
