"""Workers of llama.cpp's RPC, as a real build has them: what they say, what they do together, and how they die."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from rpc_builds import LOOPBACK, bare_worker, build_with_rpc, llama_server, process, tokens, write_noise

from appliance.core.engines.workers import RpcWorker, command_on, lost_worker, room_of
from appliance.engines.found import Engine
from appliance.engines.probing import look_at_worker, workers_for
from appliance.errors import ModelFailedToStart

pytestmark = pytest.mark.needs("ggml-rpc-server")
PROMPT = [1, *range(300, 330)]
ABORTED = -6
"""Exit status 134 of a shell: SIGABRT."""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_with_rpc()


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise(tmp_path_factory.mktemp("models") / "noise.gguf")


def fits(workers: Sequence[RpcWorker]) -> bool:
    return True


async def test_a_worker_tells_its_version_and_its_memory(engine: Engine, tmp_path: Path) -> None:
    async with bare_worker(engine, tmp_path) as (_, endpoint):
        worker = await look_at_worker(endpoint)
    assert (worker.state, worker.version, len(worker.devices)) == ("ready", engine.rpc, 1)
    assert 0 < worker.devices[0].free <= worker.devices[0].total
    assert room_of([worker]) == {"rpc0": worker.devices[0].free}
    assert (await look_at_worker(endpoint)).state == "unreachable"


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


@pytest.mark.slow
@pytest.mark.parametrize("named", ["starter", "noise"])
async def test_two_workers_serve_one_model_as_the_processor_does(
    named: str, engine: Engine, starter_model: Path, noise: Path, tmp_path: Path
) -> None:
    model = starter_model if named == "starter" else noise
    prompt = PROMPT if named == "noise" else "What is the capital of France?"
    async with llama_server(engine.command, model, tmp_path / "local.log") as (_, url):
        expected = await tokens(url, prompt, 48)
    assert len(set(expected)) > 8
    async with bare_worker(engine, tmp_path) as (_, one), bare_worker(engine, tmp_path) as (_, two):
        crew = await workers_for("m", (one, two), engine.rpc, fits=fits, in_use={})
        assert [worker.endpoint for worker in crew.workers] == [one, two]
        assert crew.notes == ()
        argv = command_on(engine.command, ("--device", "none"), ("-lv", "4"), crew.workers)
        log = tmp_path / "split.log"
        async with llama_server(argv, model, log) as (_, url):
            assert await tokens(url, prompt, 48) == expected
        for endpoint in (one, two):
            assert f"RPC0[{endpoint}] model buffer size" in log.read_text()


@pytest.mark.slow
async def test_the_death_of_a_worker_takes_the_engine_and_nobody_else(
    engine: Engine, noise: Path, tmp_path: Path
) -> None:
    async with bare_worker(engine, tmp_path) as (first, one), bare_worker(engine, tmp_path) as (second, two):
        crew = await workers_for("m", (one, two), engine.rpc, fits=fits, in_use={})
        async with llama_server(command_on(engine.command, (), (), crew.workers), noise, tmp_path / "e.log") as (
            server,
            url,
        ):
            expected = await tokens(url, PROMPT, 24)
            with closing(await trio.to_thread.run_sync(begin_answer, url)), trio.fail_after(20):
                second.kill()
                assert await server.wait() == ABORTED
        assert lost_worker((tmp_path / "e.log").read_text(errors="replace").splitlines())
        assert first.poll() is None
        async with process(
            [*command_on(engine.command, (), (), crew.workers), "-m", str(noise)], tmp_path / "without.log"
        ) as alone:
            with trio.fail_after(20):
                assert await alone.wait() == ABORTED
        assert lost_worker((tmp_path / "without.log").read_text(errors="replace").splitlines())
        asked: list[tuple[str, ...]] = []

        def noting(workers: Sequence[RpcWorker]) -> bool:
            asked.append(tuple(worker.endpoint for worker in workers))
            return True

        left = await workers_for("m", (one, two), engine.rpc, fits=noting, in_use={})
        assert asked == [(one,)]
        assert [worker.endpoint for worker in left.workers] == [one]
        assert f"worker {two} cannot be reached" in left.notes[0]
        with pytest.raises(ModelFailedToStart, match=f"does not fit without {two}"):
            await workers_for("m", (one, two), engine.rpc, fits=lambda workers: False, in_use={}, patience=0)
        argv = command_on(engine.command, ("--device", "none"), (), left.workers)
        async with llama_server(argv, noise, tmp_path / "e2.log") as (_, url):
            assert await tokens(url, PROMPT, 24) == expected


@pytest.mark.slow
async def test_a_worker_that_is_in_use_is_not_asked(engine: Engine, tmp_path: Path) -> None:
    async with bare_worker(engine, tmp_path) as (_, endpoint):
        crew = await workers_for("m", (endpoint,), engine.rpc, fits=fits, in_use={endpoint: "other"})
        assert crew.workers == ()
        assert f"worker {endpoint} serves model 'other'" in crew.notes[0]
        older = await workers_for("m", (endpoint,), "6.0.0", fits=fits, in_use={})
        assert f"has RPC {engine.rpc}, but the engine here has 6.0.0; install the same build" in older.notes[0]


def begin_answer(url: str) -> http.client.HTTPConnection:
    """Return when the first tokens of a long answer have come; who calls closes the connection."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    body = {"prompt": PROMPT, "n_predict": 900, "temperature": 0, "stream": True, "ignore_eos": True}
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    for _ in range(4):
        assert response.readline()
    return connection
