"""The measurements: what one run of each yields. Every number is from this run; goals are ratios within it."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contestants import STARTER, contestant, serve
from peers import Peers, run_json, run_streams
from processes import HOST, Failed, cpu, free_port, memory, running, wait_listening

CONNECTIONS = 48
JSON_CONNECTIONS = 16
IDLE_AFTER = 2.0
"""Seconds at rest before memory is read."""
UNLOAD_TIMEOUT = 20.0


class Plan(NamedTuple):
    """How much of everything: streams per connection, seconds of JSON, repetitions."""

    rounds: int
    seconds: int
    repeats: int


FULL = Plan(rounds=6, seconds=4, repeats=9)
QUICK = Plan(rounds=2, seconds=2, repeats=3)


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


class Swap(NamedTuple):
    """Milliseconds from the request (or the spawn) to the first token, medians over the same minutes."""

    cold: float
    """A bare engine, from spawning it; it is asked as soon as its /health says 200."""
    load: float
    """Nothing is loaded."""
    swap: float
    """Another model has the only place: it is stopped first."""
    loaded: float


def swap(command: Sequence[str], engine: str, plan: Plan, folder: Path) -> Swap:
    """The program with a real engine, room for one model, and two names for the starter; a bare engine beside it.

    The four take turns, so that what else the machine does hits all of them.
    """
    other = folder / "other.gguf"
    other.write_bytes(STARTER.read_bytes())
    port = free_port()
    argv = serve(port, engine, {"one": STARTER, "two": other}, "--models-max", "1", "--threads", "1")
    times: dict[str, list[float]] = {"cold": [], "load": [], "swap": [], "loaded": []}
    with running(argv, folder / "serve.log") as process:
        wait_listening(process, port)
        ask(port, "one")
        for _ in range(plan.repeats):
            times["cold"].append(cold_start(command, folder))
            unload(port, "one")
            times["load"].append(ask(port, "one"))
            ask(port, "two")
            times["swap"].append(ask(port, "one"))
            times["loaded"].append(ask(port, "one"))
    return Swap(**{name: statistics.median(found) * 1000 for name, found in times.items()})


def cold_start(command: Sequence[str], folder: Path) -> float:
    """Seconds from spawning a bare engine to its first token."""
    port = free_port()
    argv = [*command, "--model", str(STARTER), "--host", HOST, "--port", str(port), "--threads", "1", "--metrics"]
    began = time.monotonic()
    with running(argv, folder / "engine.log") as process:
        wait_listening(process, port)
        return first_token(port, "any") - began


def ask(port: int, model: str) -> float:
    """Seconds from a request to its first token."""
    began = time.monotonic()
    return first_token(port, model) - began


def first_token(port: int, model: str) -> float:
    """Ask for a stream; the moment its first text arrives. The answer is read to its end, so that the model is idle."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "stream": True}
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        received = b""
        at = 0.0
        while part := response.read1(1 << 16):
            received += part
            if not at and b'"content":"' in received:
                at = time.monotonic()
    finally:
        connection.close()
    if response.status != 200 or not at:
        raise Failed(f"{model} answered {response.status}: {received[:200].decode(errors='replace')}")
    return at


def unload(port: int, model: str) -> None:
    """POST /models/unload, and wait until nothing is left of the model's process."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("POST", "/models/unload", json.dumps({"model": model}), {"Content-Type": "application/json"})
        if connection.getresponse().status != 200:
            raise Failed(f"{model} could not be unloaded")
    finally:
        connection.close()
    until = time.monotonic() + UNLOAD_TIMEOUT
    while time.monotonic() < until:
        if _state(port, model) == "unloaded":
            return
        time.sleep(0.005)
    raise Failed(f"{model} was still there {UNLOAD_TIMEOUT:g} s after its unloading")


def _state(port: int, model: str) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", "/models")
        entries = json.loads(connection.getresponse().read())["data"]
    finally:
        connection.close()
    return next(entry["status"]["value"] for entry in entries if entry["id"] == model)


class Start(NamedTuple):
    listening: float
    """Seconds from the command to the first answer, the median."""
    rss: float
    """MB resident at rest, the process itself."""
    rss_below: float
    """MB resident at rest, its helpers."""


def start(engine: str, plan: Plan, folder: Path, program: Path | None = None) -> Start:
    """The program at rest: how soon it listens, and what it weighs without a model."""
    sizes: list[tuple[int, int]] = []

    def once() -> float:
        port = free_port()
        with running(serve(port, engine, {"one": STARTER}, program=program), folder / "serve.log") as process:
            seconds = wait_listening(process, port)
            if not sizes:
                time.sleep(IDLE_AFTER)
                sizes.append(memory(process))
        return seconds

    listening = statistics.median(once() for _ in range(min(plan.repeats, 5)))
    own, below = sizes[0]
    return Start(listening, own / 1e6, below / 1e6)
