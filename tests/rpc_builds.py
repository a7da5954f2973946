"""A real build of llama.cpp with RPC, its processes, and a model whose weights are noise."""

from __future__ import annotations

import json
import math
import random
import struct
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from hollow_models import dense, encode
from waiting import until

from appliance.core.engine import Engine
from appliance.core.rpc_workers import NO_DEBUGGER
from appliance.errors import UsageError
from appliance.features.engines.found import list_engines
from appliance.features.engines.rpc_look import look_at_worker
from appliance.features.engines.rpc_server import server_program
from appliance.platform.children import inherited_env
from appliance.platform.ports import free_port

LOOPBACK = "127.0.0.1"
START_TIME = 60.0
POOL = 65521
"""Numbers that the noise repeats; a prime, so that no two rows of a tensor are alike."""


def build_with_rpc() -> Engine:
    """One for the processor, for a test that needs ``ggml-rpc-server``."""
    for engine in list_engines():
        if engine.rpc is not None and engine.backend == "cpu" and not engine.damage:
            try:
                server_program(engine)
            except UsageError:
                continue
            return engine
    raise AssertionError("a build of this machine has a ggml-rpc-server, and does not say which RPC it speaks")


def write_noise(path: Path) -> Path:
    """A model of about 55 MB, 8 layers of F16, whose answers depend on every weight."""
    model = dense(layers=8, width=512, heads=8, kv_heads=8, forward=1408, vocabulary=1024, context=2048)
    header, size = encode(model)
    luck = random.Random(1)
    pool = struct.pack(f"<{POOL}e", *(luck.gauss(0.0, 0.05) for _ in range(POOL)))
    with path.open("wb") as file:
        file.write(header)
        for shape in model.tensors.values():
            count = math.prod(shape)
            ones, noise = struct.pack("<f", 1.0), pool * (count // POOL + 1)
            data = ones * count if len(shape) == 1 else noise[: 2 * count]
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
        assert file.tell() == len(header) + size
    return path


@asynccontextmanager
async def process(argv: Sequence[str], log: Path) -> AsyncGenerator[trio.Process]:
    """Run a program for the length of the block, with everything it prints in a file."""
    with log.open("ab") as output:
        started = await trio.lowlevel.open_process(
            list(argv), env={**inherited_env(), **NO_DEBUGGER}, stdin=None, stdout=output, stderr=output
        )
    try:
        yield started
    finally:
        with trio.CancelScope(shield=True):
            if started.returncode is None:
                started.kill()
            await started.wait()


@asynccontextmanager
async def bare_worker(engine: Engine, folder: Path) -> AsyncGenerator[tuple[trio.Process, str]]:
    """``ggml-rpc-server`` itself, without this program around it, and its endpoint."""
    port = free_port()
    argv = [server_program(engine), "-p", str(port), "-t", "1"]
    async with process(argv, folder / f"worker-{port}.log") as worker:
        endpoint = f"{LOOPBACK}:{port}"
        await until(lambda: look_at_worker(endpoint), lambda worker: worker.state == "ready", within=START_TIME)
        yield worker, f"{LOOPBACK}:{port}"


@asynccontextmanager
async def llama_server(argv: Sequence[str], model: Path, log: Path) -> AsyncGenerator[tuple[trio.Process, str]]:
    """An engine's command with this model, when it is ready, and its URL."""
    port = free_port()
    own = ("--model", str(model), "--port", str(port), "--threads", "1", "-c", "1024")
    async with process([*argv, *own], log) as server:
        url = f"http://{LOOPBACK}:{port}"
        with trio.fail_after(START_TIME):
            while not await trio.to_thread.run_sync(_is_ready, url):
                assert server.poll() is None, f"it ended; see {log}"
                await trio.sleep(0.02)
        yield server, url


async def tokens(url: str, prompt: Sequence[int] | str, count: int) -> list[int]:
    """What the model says at temperature 0."""
    body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    return list((await trio.to_thread.run_sync(post, f"{url}/completion", {**body, "ignore_eos": True}))["tokens"])


def post(url: str, body: object) -> dict[str, list[int]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_TIME) as response:
        answer: dict[str, list[int]] = json.load(response)
        return answer


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False
