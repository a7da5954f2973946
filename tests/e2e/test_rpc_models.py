"""A model whose layers lie with workers, through the whole program: with both, when one dies, and without it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import trio
from program import Answer, Server, http
from rpc_builds import bare_worker, build_with_rpc, write_noise

from appliance.core.engine import Engine

pytestmark = pytest.mark.needs("ggml-rpc-server")
ASKED = {"prompt": [1, *range(300, 330)], "temperature": 0, "ignore_eos": True, "return_tokens": True}
CONFIGURED = """
models:
  configured:
    cmd: llama-server -m {model} --port ${{PORT}} --threads 1 -c 1024
    rpc: [{workers}]
"""
PRESET = """
[on-disk]
model = {model}
ctx-size = 1024
threads = 1
rpc = {workers}
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_with_rpc()


def ask(server: Server, model: str, count: int = 16) -> list[int]:
    answer = http(server, "POST", "/completion", {**ASKED, "model": model, "n_predict": count})
    assert answer.status == 200, answer.body
    return list(json.loads(answer.body)["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["configured", "on-disk"])
async def test_a_worker_that_dies_takes_nobody_along(model: str, engine: Engine, tmp_path: Path) -> None:
    noise = write_noise(tmp_path / "noise.gguf")
    async with bare_worker(engine, tmp_path) as (first, one), bare_worker(engine, tmp_path) as (second, two):
        files = {"model": noise, "workers": f"{one},{two}"}
        (tmp_path / "c.yaml").write_text(CONFIGURED.format(**files))
        (tmp_path / "p.ini").write_text(PRESET.format(**files))
        argv = ["serve", "--listen", "127.0.0.1:0", "--engine", engine.folder or ""]
        argv += ["--config", str(tmp_path / "c.yaml"), "--models-preset", str(tmp_path / "p.ini")]
        with Server(argv, tmp_path) as server:
            await trio.to_thread.run_sync(server.wait_listening)
            expected = await trio.to_thread.run_sync(ask, server, model)
            told: list[Answer] = []

            def ask_for_long() -> None:
                told.append(http(server, "POST", "/completion", {**ASKED, "model": model, "n_predict": 700}))

            asking = threading.Thread(target=ask_for_long)
            asking.start()
            await trio.sleep(0.7)  # it computes, and tells nothing before its end
            assert asking.is_alive()
            second.kill()
            await second.wait()
            await trio.to_thread.run_sync(asking.join, 60)
            assert told[0].status == 200, told[0].body  # asked again by the program
            assert json.loads(told[0].body)["tokens"][:16] == expected
            assert await trio.to_thread.run_sync(ask, server, model) == expected
            assert first.poll() is None
            told_of_it = server.told()
            assert f"worker {two} cannot be reached" in told_of_it
            assert "the model goes without it" in told_of_it
