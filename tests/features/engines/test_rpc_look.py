"""A look at a worker ends in time and in words, whatever is at the other end, and does no harm to a real one."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from msgspec import structs
from rpc_builds import LOOPBACK, bare_worker, build_with_rpc
from waiting import SOON

from appliance.core.engine import Engine
from appliance.core.rpc_workers import WantedCrew
from appliance.errors import ModelFailedToStart
from appliance.features.engines.rpc_look import look_at_worker, workers_for

HELLO = struct.pack("<Q", 28) + bytes((7, 0, 0)) + bytes(25)
COUNT = struct.pack("<QI", 4, 1)
MEMORY = struct.pack("<QQQ", 16, 5 << 30, 8 << 30)
Talk = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncGenerator[str]:
    """A server that does this with each connection, and its endpoint."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):  # it is given up with a reset
                await talk(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def answering(*answers: bytes) -> Talk:
    """One for each request; then it waits for the end."""

    async def talk(stream: trio.SocketStream) -> None:
        for answer in answers:
            if not await stream.receive_some(100):
                return
            await stream.send_all(answer)
        while await stream.receive_some(100):
            pass

    return talk


async def test_one_that_answers() -> None:
    async with listening(answering(HELLO, COUNT, MEMORY)) as endpoint:
        worker = await look_at_worker(endpoint)
    assert (worker.state, worker.version, worker.why) == ("ready", "7.0.0", "")
    assert [(device.free >> 30, device.total >> 30) for device in worker.devices] == [(5, 8)]


async def test_what_is_no_worker() -> None:
    async with listening(answering(HELLO, COUNT, struct.pack("<QQQ", 16, 0, 1 << 63))) as endpoint:
        worker = await look_at_worker(endpoint)
    assert (worker.state, worker.version) == ("other", None)
    assert f"what listens at {endpoint} is no worker: it says that a device has" in worker.why


async def test_one_that_ends_or_breaks_the_connection() -> None:
    async def leave(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)

    async def reset(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for talk, words in ((leave, "ended the connection at the greeting"), (reset, "broke the connection")):
        async with listening(talk) as endpoint:
            worker = await look_at_worker(endpoint)
        assert worker.state == "other"
        assert words in worker.why


@pytest.mark.parametrize("answers", [(), (HELLO,), (HELLO[:20],), (HELLO, COUNT)])
async def test_one_that_falls_silent(answers: Sequence[bytes]) -> None:
    async with listening(answering(*answers)) as endpoint:
        began = trio.current_time()
        worker = await look_at_worker(endpoint, seconds=0.3)
        assert trio.current_time() - began < SOON
    assert worker.state == "busy"
    assert "takes connections and does not answer" in worker.why
    assert worker.devices == ()


async def test_nobody_there(free_port: Callable[[], int]) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    worker = await look_at_worker(endpoint)
    assert worker.state == "unreachable"
    assert f"worker {endpoint} cannot be reached: connection refused; is" in worker.why
    assert "is an rpc-worker of llama-appliance running there" in worker.why


async def test_a_queue_that_is_full() -> None:
    """As a machine that is off: nothing comes back."""
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        worker = await look_at_worker(f"127.0.0.1:{deaf.getsockname()[1]}", seconds=0.3)
    assert worker.state == "unreachable"
    assert "no connection within 0.3 s" in worker.why


async def test_a_name_that_nobody_knows() -> None:
    worker = await look_at_worker("no-such-host.invalid", seconds=5)
    assert worker.state == "unreachable"
    assert worker.endpoint == "no-such-host.invalid:50052"


def wanted(*endpoints: str, fits: bool = False) -> WantedCrew:
    return WantedCrew(model="m", endpoints=endpoints, fits=lambda _: fits)


async def test_all_are_looked_at_at_once_and_told_in_their_order() -> None:
    async with listening(answering()) as silent, listening(answering(HELLO, COUNT, MEMORY)) as good:
        began = trio.current_time()
        crew = await workers_for(wanted(silent, good, silent, fits=True), "7.0.0", seconds=1.5)
        assert trio.current_time() - began < 2.9
        assert [worker.endpoint for worker in crew.workers] == [good]
        assert len(crew.notes) == 1
        none = await workers_for(wanted(good, fits=True), None)
    assert none.workers == ()
    assert "the engine has no RPC" in none.notes[0]


async def test_one_that_is_missed_may_come_back() -> None:
    with socket.socket() as later:
        later.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{later.getsockname()[1]}"
        with pytest.raises(ModelFailedToStart, match=f"does not fit without {endpoint}"):
            await workers_for(wanted(endpoint), "7.0.0", patience=0)
        async with trio.open_nursery() as nursery:

            async def come_back() -> None:
                await trio.sleep(0.1)  # it has been missed by then
                later.listen()
                await trio.serve_listeners(
                    answering(HELLO, COUNT, MEMORY), [trio.SocketListener(trio.socket.from_stdlib_socket(later))]
                )

            nursery.start_soon(come_back)
            crew = await workers_for(wanted(endpoint), "7.0.0", patience=5)
            nursery.cancel_scope.cancel()
    assert [worker.endpoint for worker in crew.workers] == [endpoint]
    assert crew.notes == ()


async def test_nobody_waits_for_one_that_will_not_do() -> None:
    began = trio.current_time()
    async with listening(answering(HELLO, COUNT, MEMORY)) as endpoint:
        with pytest.raises(ModelFailedToStart, match="install the same build on both"):
            await workers_for(wanted(endpoint), "7.1.0", patience=9)
    with pytest.raises(ModelFailedToStart, match="serves model 'a'"):
        await workers_for(structs.replace(wanted("h:1"), in_use={"h:1": "a"}), "7.0.0", patience=9)
    assert trio.current_time() - began < SOON


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_with_rpc()


@pytest.mark.slow
@pytest.mark.needs("ggml-rpc-server")
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
