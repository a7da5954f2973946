"""From a request to its first token with a real llama-server: configured, on disk, embedded; against the bare engine.

All have the starter model and the same arguments, and take turns, so that other work of the machine hits all of them.
Models are unloaded and looked for by llama-swap's API, so that peers that have it can be measured, too.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ends import Figures
from processes import HOST, START_TIMEOUT, Failed, free_pair, free_port, get, running, wait_accepting
from relays import Program

STARTER = Path(__file__).parents[1] / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
FLAGS = ("--threads", "1", "-c", "512")
UNLOAD_TIMEOUT = 20.0
BARE, CONFIGURED, DISK = "bare", "configured", "on disk"
EMBEDDED = "embedded"
Found = dict[str, list[Figures]]


class Engine(NamedTuple):
    """A real one: its command, and how the program is told to take it."""

    command: tuple[str, ...]
    name: str


def engines(python: Path, named: str | None) -> list[Engine]:
    """The one that was named, or those of this machine: an installed llama-server, and the embedded one."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama-appliance" / "engines"
    built = sorted(map(str, caches.glob("*-cpu/*/llama-server")))
    installed = named or os.environ.get("LLAMA_APPLIANCE_ENGINE") or shutil.which("llama-server")
    paths = [installed] if installed else built[-1:]
    found = [Engine((path,), path) for path in paths if path != EMBEDDED]
    if named in (None, EMBEDDED):
        ask = "from appliance.features.embedded import command; print(*command(), sep='\\n')"
        told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
        found.append(Engine(tuple(told.stdout.splitlines()), EMBEDDED))
    return found


def swaps(program: Program, peers: Mapping[str, str], engine: Engine, repeats: int, folder: Path) -> Found:
    """Milliseconds of each way, one sample for each repeat. Failed when one of them does not answer."""
    other = folder / "other.gguf"
    other.write_bytes(STARTER.read_bytes())
    found: Found = {BARE: [{"cold_ms": _bare(engine, folder)}]}  # at first: the others cannot do without
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        for name, argv in _servers(program, peers, engine, other, folder).items():
            ports[name] = port = free_port()
            argv = [word.replace("{port}", str(port)) for word in argv]
            wait_accepting(stack.enter_context(running(argv, folder / "swaps.log")), port)
            for model in ("one", "two"):
                _until_answered(port, model)
        for _ in range(repeats):
            found[BARE].append({"cold_ms": _bare(engine, folder)})
            for name, port in ports.items():
                found.setdefault(name, []).append(_one_at_a_time(port))
    return {f"{Path(engine.name).name}: {name}": samples for name, samples in found.items()}


def _servers(
    program: Program, peers: Mapping[str, str], engine: Engine, other: Path, folder: Path
) -> dict[str, list[str]]:
    """The command lines, with {port} in them."""

    def configured(name: str) -> str:
        models = {
            model: {"cmd": shlex.join(_command(engine, path, "${PORT}")), "proxy": f"http://{HOST}:${{PORT}}"}
            for model, path in (("one", STARTER), ("two", other))
        }
        path = folder / f"swap-{name}.yaml"
        path.write_text(json.dumps({"startPort": free_pair(), "models": models}), encoding="utf-8")
        return str(path)

    begin = [*program.words, "serve", "--listen", f"{HOST}:{{port}}", "--engine", engine.name]
    models = ["--no-starter", "--model", f"one={STARTER}", "--model", f"two={other}", "--models-max", "1"]
    found = {
        CONFIGURED: [*begin, "--config", configured("program")],
        DISK: [*begin, *models, "--threads", "1", "--", "-c", "512"],
    }
    for number, (name, command) in enumerate(peers.items()):
        if "{config}" in command:
            named = command.replace("{config}", configured(str(number))).replace("{engine_program}", engine.name)
            found[name] = shlex.split(named)
    return found


def _command(engine: Engine, model: Path, port: str) -> list[str]:
    return [*engine.command, "--model", str(model), "--host", HOST, "--port", port, *FLAGS]


def _until_answered(port: int, model: str) -> None:
    until = time.monotonic() + START_TIMEOUT
    while True:
        try:
            _first_token(port, model)
            return
        except (Failed, OSError, http.client.HTTPException) as cause:
            if time.monotonic() > until:
                raise Failed(str(cause)) from None
        time.sleep(0.1)


def _one_at_a_time(port: int) -> Figures:
    _unload(port)
    return {
        "cold_ms": _ask(port, "one"),
        "swap_ms": (_ask(port, "two") + _ask(port, "one")) / 2,
        "loaded_ms": _ask(port, "one"),
    }


def _bare(engine: Engine, folder: Path) -> float:
    """Milliseconds from spawning a bare engine to its first token; it is asked as soon as its /health says 200."""
    port = free_port()
    began = time.monotonic()
    with running(_command(engine, STARTER, str(port)), folder / "engine.log") as process:
        while get(port, "/health")[0] != 200:
            if process.poll() is not None or time.monotonic() > began + START_TIMEOUT:
                raise Failed(f"{Path(engine.name).name} does not start on this machine")
            time.sleep(0.001)
        return (_first_token(port, "any") - began) * 1000


def _ask(port: int, model: str) -> float:
    """Milliseconds from a request to its first token."""
    began = time.monotonic()
    return (_first_token(port, model) - began) * 1000


def _first_token(port: int, model: str) -> float:
    """Ask for a stream; the moment its first text arrives. The answer is read to its end, so that the model is idle."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "stream": True}
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        received = b""
        at = 0.0
        while part := answer.read1(1 << 16):
            received += part
            if not at and b'"content":"' in received:
                at = time.monotonic()
    finally:
        connection.close()
    if answer.status != 200 or not at:
        raise Failed(f"{model} answered {answer.status}: {received[:200].decode(errors='replace')}")
    return at


def _unload(port: int) -> None:
    """Nothing is left of any model's process afterwards."""
    get(port, "/unload")
    until = time.monotonic() + UNLOAD_TIMEOUT
    while time.monotonic() < until:
        status, body = get(port, "/running")
        if status == 200 and not json.loads(body)["running"]:
            return
        time.sleep(0.005)
    raise Failed(f"a model was still there {UNLOAD_TIMEOUT:g} s after its unloading")
