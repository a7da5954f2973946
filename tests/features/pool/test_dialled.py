"""Connections that the other side has made: one that waits is taken once, and a broken one is not."""

from __future__ import annotations

import socket

import pytest
import trio
from msgspec import structs
from trio.testing import wait_all_tasks_blocked

from appliance.features.pool.doors import SWITCHED, Dialled
from appliance.upstream.client import Address, HttpCall
from appliance.upstream.connect import ConnectFailed
from appliance.upstream.pool import open_pool

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(10)
    return near, far


@pytest.mark.parametrize("polled", [False, True])
async def test_a_request_goes_out_on_a_connection_that_came_in(polled: bool) -> None:
    dialled = Dialled()
    address = Address("box.llama-pool", 1, None, "box", tls=True, dialled=dialled, connect_timeout=5)
    (broken, gone), (good, far) = pair(), pair()
    gone.close()
    far.sendall(ANSWER)
    async with open_pool() as pool:
        with dialled.waiting(lambda: None), dialled.waiting(lambda: good), dialled.waiting(lambda: broken):
            async with HttpCall(address, "GET", "/health", pool=pool if polled else None) as answer:
                assert await answer.read(10) == b"ok"
            with far:
                received = far.recv(4096)
            assert received.startswith(SWITCHED + b"GET /health HTTP/1.1\r\nHost: box.llama-pool:1\r\n")
            with pytest.raises(ConnectFailed, match="has no connection to this box"):
                async with HttpCall(structs.replace(address, connect_timeout=0.01), "GET", "/health"):
                    pass
    assert (broken.fileno(), good.fileno()) == (-1, -1)


async def test_a_request_waits_for_the_next_connection() -> None:
    dialled, (near, far) = Dialled(), pair()
    taken: list[object] = []

    async def take() -> None:
        taken.append(await dialled.take(10))

    with near, far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await wait_all_tasks_blocked()
            with dialled.waiting(lambda: near):
                await wait_all_tasks_blocked()
                assert taken == [near]
        with dialled.waiting(lambda: near):
            pass
        assert await dialled.take(0.01) is None  # it ended while it waited
