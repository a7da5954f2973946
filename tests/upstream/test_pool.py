"""Connections that are used again: only where the answer ended in good order, and never one that was closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from upstream_harness import listening, read_request
from waiting import PATIENCE, until

from appliance.core.exchange import RelayOptions
from appliance.core.headers import Headers
from appliance.errors import UpstreamFailed
from appliance.upstream import pool as pool_module
from appliance.upstream.client import Address, HttpCall, Outgoing, relay
from appliance.upstream.pool import Pool, open_pool

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[trio.SocketStream], Awaitable[None]]


def keeping(answers: list[bytes], connections: list[int]) -> Serve:
    """A server that answers request after request on a connection; it notes how many each connection had."""

    async def serve(stream: trio.SocketStream) -> None:
        mine = len(connections)
        connections.append(0)
        for answer in answers:
            if not await read_request(stream):
                return
            connections[mine] += 1
            await stream.send_all(answer)
        await stream.aclose()

    return serve


@asynccontextmanager
async def server(*answers: bytes) -> AsyncGenerator[tuple[Address, list[int]]]:
    connections: list[int] = []
    async with listening(keeping(list(answers), connections)) as port:
        yield Address("127.0.0.1", port, None, "m"), connections


async def ask(pool: Pool, address: Address, method: str = "POST") -> bytes:
    with trio.fail_after(PATIENCE):
        async with HttpCall(address, method, "/", pool=pool) as response:
            return await response.read(1 << 20)


async def test_a_connection_serves_one_request_after_the_other():
    async with server(*[OK] * 5) as (address, connections), open_pool() as pool:
        for _ in range(4):
            assert await ask(pool, address) == b"ok"
            assert pool.free == 1
        assert connections == [4]


async def test_the_end_of_the_pool_closes_what_waits():
    async with server(*[OK] * 5) as (address, connections):
        async with open_pool() as pool:
            await ask(pool, address)
        assert pool.free == 0
        async with open_pool() as another:
            await ask(another, address)
        assert connections == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, Close\r\n\r\nok",
    ],
)
async def test_a_server_that_says_so_is_asked_on_a_new_one(answer: bytes):
    async with server(answer, OK) as (address, connections), open_pool() as pool:
        assert await ask(pool, address) == b"ok"
        assert pool.free == 0
        assert await ask(pool, address) == b"ok"
        assert connections == [1, 1]


async def test_an_answer_that_is_given_up_closes_its_connection():
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    async with server(long, OK) as (address, connections), open_pool() as pool:
        async with HttpCall(address, "POST", "/", pool=pool) as response:
            assert response.status == 200
        assert pool.free == 0
        with trio.move_on_after(0.05):
            await ask(pool, address)
        assert pool.free == 0
        assert connections == [1, 1]


async def test_bytes_behind_an_answer_end_it_for_good():
    async with server(OK + b"HTTP/1.1 200 OK\r\n", OK) as (address, _connections), open_pool() as pool:
        with pytest.raises(UpstreamFailed):
            await ask(pool, address)
        assert pool.free == 0


async def test_one_that_the_server_closes_is_forgotten():
    async with server(OK) as (address, connections), open_pool() as pool:
        assert await ask(pool, address) == b"ok"  # after this answer the server closes
        await until(lambda: pool.free == 0)
        assert await ask(pool, address) == b"ok"
        assert connections == [1, 1]


async def test_one_that_closes_as_it_is_taken_is_replaced_once():
    async with open_pool() as pool:
        connections: list[int] = []

        async def serve(stream: trio.SocketStream) -> None:
            connections.append(0)
            assert await read_request(stream)
            await stream.send_all(OK)
            if len(connections) == 1:
                await read_request(stream)  # and closes without an answer

        async with listening(serve) as port:
            address = Address("127.0.0.1", port, None, "m")
            assert await ask(pool, address) == b"ok"
            assert await ask(pool, address) == b"ok"
            assert len(connections) == 2


async def test_a_new_one_that_closes_is_not_asked_again():
    connections: list[int] = []

    async def serve(stream: trio.SocketStream) -> None:
        connections.append(0)
        await read_request(stream)

    async with open_pool() as pool, listening(serve) as port:
        with pytest.raises(UpstreamFailed):
            await ask(pool, Address("127.0.0.1", port, None, "m"))
        assert len(connections) == 1


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "MAX_FREE", 2)
    async with server(*[OK] * 5) as (address, connections), open_pool() as pool:
        async with (
            HttpCall(address, "POST", "/", pool=pool) as one,
            HttpCall(address, "POST", "/", pool=pool) as two,
            HttpCall(address, "POST", "/", pool=pool) as three,
        ):
            for response in (one, two, three):
                await response.read(10)
        assert pool.free == 2
        assert len(connections) == 3


async def test_bytes_behind_an_answer_are_nobodys():
    """A server that says something unasked: the next request must not take it for its answer."""

    async def chatty(stream: trio.SocketStream) -> None:
        while await read_request(stream):
            await stream.send_all(OK)
            await trio.sleep(0.02)
            await stream.send_all(OK.replace(b"ok", b"no"))

    async with listening(chatty) as port, open_pool() as pool:
        address = Address("127.0.0.1", port, None, "m")
        for _ in range(2):
            assert await ask(pool, address) == b"ok"
            await trio.sleep(0.1)


class Taker:
    """A client that takes all."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.got = b""

    def start(self, status: int, headers: Headers) -> None:
        self.status = status

    def push(self, data: bytes) -> bool:
        self.got += data
        return True

    def finish(self) -> bool:
        return True

    def abort(self) -> None:
        raise AssertionError

    async def flush(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("reused", [False, True])
async def test_what_is_relayed_is_asked_again_only_on_a_connection_that_was_used_before(reused: bool):
    asked: list[bytes] = []

    async def silent(stream: trio.SocketStream) -> None:
        """Answers the first request of all, if one comes before, and closes the connection at the others."""
        asked.append(await read_request(stream))
        if reused and len(asked) == 1:
            await stream.send_all(OK)
            asked.append(await read_request(stream))
        await stream.aclose()

    async with listening(silent) as port, open_pool() as pool:
        address = Address("127.0.0.1", port, None, "m")
        if reused:
            assert await ask(pool, address) == b"ok"
        with pytest.raises(UpstreamFailed, match="closed the connection without an answer"):
            await relay(Outgoing(address, "POST", "/", (), b"", pool), RelayOptions(label="m"), Taker())
        assert len(asked) == 1 + 2 * reused


@pytest.mark.parametrize("begins", [False, True])
async def test_the_header_timeout_of_a_relayed_answer_ends_with_its_head(begins: bool):
    async def slow(stream: trio.SocketStream) -> None:
        await read_request(stream)
        if begins:
            await stream.send_all(OK[:-1])
            await trio.sleep(0.5)
            await stream.send_all(OK[-1:])
        await trio.sleep_forever()

    async with listening(slow) as port, open_pool() as pool:
        address, taker = Address("127.0.0.1", port, None, "m", header_timeout=0.2), Taker()
        outgoing = Outgoing(address, "POST", "/", (), b"", pool)
        with trio.fail_after(10):
            if begins:
                await relay(outgoing, RelayOptions(label="m"), taker)
                assert taker.got == b"ok"
            else:
                with pytest.raises(UpstreamFailed, match=r"0\.2 s.*timeouts\.responseHeader"):
                    await relay(outgoing, RelayOptions(label="m"), taker)
