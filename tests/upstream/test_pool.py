"""Connections that are used again: only where the answer ended in good order, and never one that was closed."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from upstream_harness import listening, read_request
from waiting import PATIENCE, until

from appliance.core.exchange import RelayOptions
from appliance.core.headers import Headers
from appliance.errors import UpstreamFailed
from appliance.features.pool.core.keys import PoolKeys
from appliance.features.pool.core.roster import Box
from appliance.features.pool.doors import Ways
from appliance.http.bytes.tls import load_context
from appliance.upstream import pool as pool_module
from appliance.upstream.client import Address, HttpCall, Outgoing, relay
from appliance.upstream.pool import Pool, open_pool

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[trio.SocketStream], Awaitable[None]]
End = Literal[
    *("stays", "closes", "closes at the next request", "says close", "says close among others", "is of HTTP/1.0"),
    *("is cut", "is given up"),
]
"""The end of an answer."""
SAID = {
    "says close": OK.replace(b"Con", b"Connection: close\r\nCon"),
    "says close among others": OK.replace(b"Con", b"Connection: keep-alive, Close\r\nCon"),
    "is of HTTP/1.0": OK.replace(b"1.1", b"1.0"),
}
BOX = Box(name="b2", addresses=("127.0.0.1",), port=4280)


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


async def ask(pool: Pool, address: Address, body: bytes = b"", *, relays: bool = False) -> bytes:
    """The answer, to the program itself or relayed to a client."""
    with trio.fail_after(PATIENCE):
        if relays:
            taker = Taker()
            await relay(Outgoing(address, "POST", "/", (), body, pool), RelayOptions(label="m"), taker)
            return taker.got
        async with HttpCall(address, "POST", "/", (), body, pool=pool) as response:
            return await response.read(1 << 23)


async def test_the_end_of_the_pool_closes_what_waits():
    async with server(*[OK] * 5) as (address, connections):
        async with open_pool() as pool:
            await ask(pool, address)
        assert pool.free == 0
        async with open_pool() as another:
            await ask(another, address)
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


async def test_one_that_waited_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch):
    async with server(*[OK] * 3) as (address, connections), open_pool() as pool:
        await ask(pool, address)
        monkeypatch.setattr(pool_module, "MAX_AGE", 0.0)
        await ask(pool, address)
        assert connections == [1, 1]


@pytest.mark.parametrize("secure", [False, True])
async def test_bytes_behind_an_answer_are_nobodys(secure: bool, tls_server: ssl.SSLContext, trusted: None):
    """A server that says something unasked: the next request must not take it for its answer."""

    async def chatty(stream: trio.SocketStream) -> None:
        while await read_request(stream):
            await stream.send_all(OK)
            await trio.sleep(0.02)
            await stream.send_all(OK.replace(b"ok", b"no"))

    async with listening(chatty, tls=tls_server if secure else None) as port, open_pool() as pool:
        address = Address("localhost", port, None, "m", tls=secure)
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


@pytest.mark.parametrize("relays", [False, True])
@pytest.mark.parametrize("reused", [False, True])
async def test_a_server_that_gives_no_answer_is_asked_again_only_on_a_new_connection(reused: bool, relays: bool):
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
            await ask(pool, address, relays=relays)
        assert len(asked) == 1 + 2 * reused


@pytest.mark.parametrize("relays", [False, True])
@pytest.mark.parametrize("begins", [False, True])
async def test_the_header_timeout_of_an_answer_ends_with_its_head(begins: bool, relays: bool):
    async def slow(stream: trio.SocketStream) -> None:
        await read_request(stream)
        if begins:
            await stream.send_all(OK[:-1])
            await trio.sleep(0.5)  # longer than its head may take
            await stream.send_all(OK[-1:])
        await trio.sleep_forever()

    async with listening(slow) as port, open_pool() as pool:
        address = Address("127.0.0.1", port, None, "m", header_timeout=0.2)
        if begins:
            assert await ask(pool, address, relays=relays) == b"ok"
        else:
            with pytest.raises(UpstreamFailed, match=r"0\.2 s.*timeouts\.responseHeader"):
                await ask(pool, address, relays=relays)


@pytest.mark.parametrize("relays", [False, True])
async def test_with_tls_a_body_that_fills_all_buffers_arrives_whole(
    relays: bool, tls_server: ssl.SSLContext, trusted: None
):
    body = os.urandom(6 << 20)

    async def echo(stream: trio.abc.Stream) -> None:
        while request := await read_request(stream):
            content = request.partition(b"\r\n\r\n")[2]
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)

    async with listening(echo, tls=tls_server) as port, open_pool() as pool:
        address = Address("localhost", port, None, "m", tls=True)
        for _ in range(2):
            assert await ask(pool, address, body, relays=relays) == body
            assert pool.free == 1


def server_context(keys: PoolKeys) -> ssl.SSLContext:
    """The context of the door of `BOX`."""
    own = keys.issue(BOX.name, BOX.addresses, bytes(32))
    with TemporaryDirectory() as folder:
        files = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        files[0].write_text(own.certificate)
        files[1].write_text(own.key)
        return load_context(str(files[0]), str(files[1]))


SECRETS = [PoolKeys(bytes([number]) * 32) for number in range(8)]
CONTEXTS = [server_context(keys) for keys in SECRETS]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(End.__args__), st.booleans()), min_size=2, max_size=len(SECRETS) - 1),
    st.booleans(),
    st.booleans(),
)
async def test_a_connection_serves_until_an_answer_ends_badly_or_the_secret_changes(
    acts: list[tuple[End, bool]], relays: bool, secure: bool
):
    """Each request gets the answer that the server gave to it, and no more connections are made than needed."""
    secret, connections, answered = 0, list[int](), 0

    async def serve(plain: trio.SocketStream) -> None:
        nonlocal answered
        mine = secret
        connections.append(mine)
        secured = trio.SSLStream(plain, CONTEXTS[mine], server_side=True, https_compatible=True)
        async with secured if secure else plain as stream:
            while await read_request(stream):
                assert mine == secret, "a request of another secret"
                end, _ = acts[answered]
                answered += 1
                said = SAID.get(end, OK).replace(b"ok", b"%d%d" % (mine, answered))
                await stream.send_all(said[:-1] if end in ("is cut", "is given up") else said)
                if end == "closes at the next request":
                    await read_request(stream)
                if end in ("closes", "closes at the next request", "is cut"):
                    return  # at the others the client has to close

    async with listening(serve) as port, open_pool() as pool:
        needed, way = 0, Ways(SECRETS[0])
        for at, (end, renews) in enumerate(acts):
            renews &= secure
            secret += renews
            way = Ways(SECRETS[secret]) if renews else way
            needed += renews or at == 0 or acts[at - 1][0] != "stays"
            address = structs.replace(way.guess(BOX), port=port) if secure else Address("127.0.0.1", port, None, "m")
            try:
                if end == "is given up":
                    async with HttpCall(address, "POST", "/", pool=pool) as response:
                        got = await response.receive() + b"%d" % (at + 1)
                else:
                    got = await ask(pool, address, relays=relays)
            except UpstreamFailed:
                assert end == "is cut"
            else:
                assert (end, got) == (end, b"%d%d" % (secret, at + 1))
                assert end != "is cut"
            assert connections[-1] == secret
            assert len(connections) == needed
