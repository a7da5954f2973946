"""Workers of llama.cpp's RPC, as a real build has them: what they say, what they do together, and how they die."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from rpc_builds import LOOPBACK, bare_worker, build_with_rpc

from appliance.core.engine import Engine
from appliance.engines.rpc_workers import look_at_worker

pytestmark = pytest.mark.needs("ggml-rpc-server")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_with_rpc()


@pytest.mark.slow
async def test_questions_that_are_given_up_do_no_harm(engine: Engine, tmp_path: Path) -> None:
    """A worker that has a client keeps two more connections waiting. At one that was closed in the ordinary way, with
    its question sent, it dies of SIGPIPE when it comes to it."""
    async with bare_worker(engine, tmp_path) as (process, endpoint):
        client = await trio.open_tcp_stream(LOOPBACK, int(endpoint.partition(":")[2]))
        async with client:
            await client.send_all(b"\x0e")
            await trio.sleep(0.1)
            states = [(await look_at_worker(endpoint, seconds=0.2)).state for _ in range(3)]
            assert states == ["busy", "busy", "unreachable"]
        with trio.fail_after(10):
            while (worker := await look_at_worker(endpoint, seconds=0.5)).state != "ready":
                assert process.poll() is None
        assert process.poll() is None
        assert worker.version == engine.rpc
