"""From a request to its first token: models of a configuration and of the disk, against the bare engine.

All have the same engine with the same arguments, and take turns, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from contestants import STARTER, serve, serve_configuration
from processes import HOST, Failed, free_port, running, wait_listening

ENGINE_FLAGS = ("--threads", "1", "-c", "512")
UNLOAD_TIMEOUT = 20.0
CONFIGURATION = """startPort: {port}
models:
  one: {{cmd: {one}}}
  two: {{cmd: {two}}}
groups:
  both: {{members: [one, two], swap: {swap}}}
"""


class Took(NamedTuple):
    """Milliseconds from a request (of the bare engine: from its spawn) to the first token."""

    median: float
    best: float
    worst: float


BARE = "bare engine, from its spawn"
CONFIGURED, BESIDE, DISK = "configured, one at a time", "configured, swap: false", "on disk, one at a time"
COLD, SWAP, LOADED = "nothing loaded", "another one goes", "loaded"
SECOND = "beside another one"
LOADS = (f"{CONFIGURED}: {COLD}", f"{CONFIGURED}: {SWAP}", f"{BESIDE}: {SECOND}", f"{DISK}: {COLD}", f"{DISK}: {SWAP}")
"""What a bare engine's cold start is compared with."""


def swaps(command: Sequence[str], engine: str, repeats: int, folder: Path) -> dict[str, Took]:
    """What each way takes, the bare engine first. ``engine`` is how the program is told to take ``command``."""
    times: dict[str, list[float]] = {BARE: []}
    other = folder / "other.gguf"
    other.write_bytes(STARTER.read_bytes())
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        for name, argv in _servers(command, engine, other, folder).items():
            ports[name] = port = free_port()
            process = stack.enter_context(running(argv(port), folder / "serve.log"))
            wait_listening(process, port)
            for model in ("one", "two"):
                first_token(port, model)
        for _ in range(repeats):
            times[BARE].append(cold_start(command, folder))
            for name in (CONFIGURED, DISK):
                _one_at_a_time(ports[name], name, times)
            unload(ports[BESIDE], "two")
            times.setdefault(f"{BESIDE}: {SECOND}", []).append(ask(ports[BESIDE], "two"))
            if _state(ports[BESIDE], "one") != "loaded":
                raise Failed("the first model went for the second, in a group that does not swap")
    return {
        name: Took(statistics.median(found) * 1000, min(found) * 1000, max(found) * 1000)
        for name, found in times.items()
    }


def _servers(
    command: Sequence[str], engine: str, other: Path, folder: Path
) -> dict[str, Callable[[int], Sequence[str]]]:
    """The command lines, for a port each."""
    files: dict[str, Path] = {}
    for name, swap in ((CONFIGURED, True), (BESIDE, False)):
        files[name] = folder / f"swap-{swap}.yaml"
        port = free_pair(20000 + 1000 * swap)
        one, two = (json.dumps(shlex.join(_engine(command, path, "${PORT}"))) for path in (STARTER, other))
        text = CONFIGURATION.format(port=port, one=one, two=two, swap=json.dumps(swap))
        files[name].write_text(text, encoding="utf-8")
    return {
        CONFIGURED: lambda port: serve_configuration(port, files[CONFIGURED]),
        BESIDE: lambda port: serve_configuration(port, files[BESIDE]),
        DISK: lambda port: serve(
            port, engine, {"one": STARTER, "two": other}, "--models-max", "1", "--threads", "1", "--", "-c", "512"
        ),
    }


def free_pair(start: int) -> int:
    """The first of two ports in a row that nobody listens on, below those that systems give to clients."""
    for port in range(start, start + 1000, 2):
        try:
            with socket.create_server((HOST, port)), socket.create_server((HOST, port + 1)):
                return port
        except OSError:
            continue
    raise Failed(f"no two ports in a row are free above {start}")


def _engine(command: Sequence[str], model: Path, port: str) -> list[str]:
    return [*command, "--model", str(model), "--host", HOST, "--port", port, *ENGINE_FLAGS]


def _one_at_a_time(port: int, name: str, times: dict[str, list[float]]) -> None:
    unload(port, "one")
    unload(port, "two")
    times.setdefault(f"{name}: {COLD}", []).append(ask(port, "one"))
    for model in ("two", "one"):
        times.setdefault(f"{name}: {SWAP}", []).append(ask(port, model))
    times.setdefault(f"{name}: {LOADED}", []).append(ask(port, "one"))


def cold_start(command: Sequence[str], folder: Path) -> float:
    """Seconds from spawning a bare engine to its first token; it is asked as soon as its /health says 200."""
    port = free_port()
    began = time.monotonic()
    with running(_engine(command, STARTER, str(port)), folder / "engine.log", _environment()) as process:
        wait_listening(process, port)
        return first_token(port, "any") - began


def _environment() -> dict[str, str]:
    """Settings for llama-server that somebody's shell has must not make the bare one another one."""
    return {name: "" for name in os.environ if name.startswith("LLAMA_ARG_")}


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
    """Nothing is left of the model's process afterwards. POST /models/unload, where there is one."""
    if _state(port, model) == "unloaded":
        return
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


def table(found: dict[str, Took]) -> list[str]:
    """The lines of the report. On a machine that does other things, too, the best of each compare better."""
    bare = found[BARE]
    lines = [
        f"  {'to first token':<46}{'median ms':>10}{'- bare':>8}{'/ bare':>8}{'best ms':>10}{'- bare':>8}{'worst':>8}"
    ]
    for name, took in found.items():
        line = f"  {name:<46}{took.median:>10.1f}"
        line += f"{took.median - bare.median:>+8.1f}{took.median / bare.median:>8.2f}"
        lines.append(f"{line}{took.best:>10.1f}{took.best - bare.best:>+8.1f}{took.worst:>8.1f}")
    return lines
