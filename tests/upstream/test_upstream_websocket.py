"""Websockets to servers: those that agree, those that refuse, and those that break off."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket
from upstream_harness import answering, listening, read_request
from waiting import PATIENCE

from appliance.errors import UpstreamFailed
from appliance.upstream.client import Address, ConnectFailed, HttpAnswer, address_of
from appliance.upstream.websocket import BROKEN, Close, UpstreamWebsocket, open_upstream_websocket

Handler = Callable[[WebSocketRequest], Awaitable[None]]


async def echo(request: WebSocketRequest) -> None:
    """Send everything back; ``/close`` closes with a code of its own."""
    names = request.proposed_subprotocols
    socket = await request.accept(subprotocol=names[-1] if names else None, extra_headers=[(b"X-Extra", b"1")])
    with suppress(ConnectionClosed):
        if request.path == "/close":
            await socket.aclose(4001, "enough")
        elif request.path == "/head":
            await socket.send_message(repr(request.headers))
        while True:
            await socket.send_message(await socket.get_message())


@asynccontextmanager
async def websocket_server(handler: Handler = echo, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, handler, "127.0.0.1", 0, tls))
        yield server.port
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(port: int, target: str = "/") -> AsyncGenerator[UpstreamWebsocket]:
    async with open_upstream_websocket(Address("127.0.0.1", port, None, "m"), target) as websocket:
        yield websocket


@pytest.mark.parametrize("tls", [False, True])
async def test_messages_of_both_kinds_and_sizes(tls: bool, tls_server: ssl.SSLContext, trusted: None):
    async with websocket_server(tls=tls_server if tls else None) as port:
        address = address_of(f"http{'s' if tls else ''}://localhost:{port}", "m")
        with trio.fail_after(20):
            async with open_upstream_websocket(address, "/", (), ["one", "two"]) as websocket:
                assert websocket.subprotocol == "two"
                assert (b"x-extra", b"1") in websocket.headers
                for message in ("text é", b"\x00\xff", "", b"", "x" * 900_000, b"y" * 900_000):
                    assert await websocket.send(message)
                    assert await websocket.receive() == message
                await websocket.close(Close(1000))


async def test_what_the_server_is_told():
    async with websocket_server() as port:
        address = address_of(f"http://127.0.0.1:{port}", "m", api_key="secret")
        sent = [(b"X-Mine", b"1"), (b"Sec-WebSocket-Key", b"stolen"), (b"Sec-WebSocket-Extensions", b"x")]
        async with open_upstream_websocket(address, "/head", sent) as websocket:
            head = str(await websocket.receive()).lower()
            assert "'x-mine', b'1'" in head
            assert "bearer secret" in head
            assert "stolen" not in head


async def test_the_servers_close_code_and_reason():
    async with websocket_server() as port, opened(port, "/close") as websocket:
        with trio.fail_after(PATIENCE):
            assert await websocket.receive() is None
        assert websocket.closed == Close(4001, "enough")
        assert not await websocket.send("late")


@pytest.mark.parametrize("code", [1000, 1001, 1005, 4999, None])
async def test_our_close_code_and_reason_or_that_we_left(code: int | None):
    heard: list[tuple[int, str | None]] = []
    ended = trio.Event()

    async def note(request: WebSocketRequest) -> None:
        socket = await request.accept()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        reason = closed.value.reason
        heard.append((reason.code, reason.reason) if reason else (0, None))
        ended.set()

    async with websocket_server(note) as port:
        async with opened(port) as websocket:
            if code is not None:
                await websocket.close(Close(code, "" if code == 1005 else "why"))
        with trio.fail_after(PATIENCE):
            await ended.wait()
    assert heard == [(code, None if code == 1005 else "why")] if code is not None else heard[0][0] != 1000


async def test_a_refusal_is_an_answer_like_any_other():
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/plain\r\n\r\nno key, no socket"
    async with (
        listening(answering(refusal)) as port,
        open_upstream_websocket(Address("127.0.0.1", port, None, "m"), "/") as answer,
    ):
        assert isinstance(answer, HttpAnswer)
        assert answer.status == 401
        assert await answer.read(100) == b"no key, no socket"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"", "without an answer"),
        (b"hello\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "not valid"),
        (b"HTTP/1.1 101 Go\r\nUpgrade: tea\r\n\r\n", "not valid"),
    ],
)
async def test_a_server_that_does_not_know_how(answer: bytes, word: str):
    async with listening(answering(answer)) as port:
        with trio.fail_after(PATIENCE), pytest.raises(UpstreamFailed, match=word):
            async with open_upstream_websocket(Address("127.0.0.1", port, None, "m"), "/"):
                pytest.fail("there is no websocket")


async def test_a_server_that_never_answers_and_one_that_is_not_there(free_port: Callable[[], int]):
    async def silent(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await trio.sleep_forever()

    async with listening(silent) as port:
        with trio.fail_after(PATIENCE), pytest.raises(UpstreamFailed, match=r"0\.2 s"):
            async with open_upstream_websocket(Address("127.0.0.1", port, None, "m", header_timeout=0.2), "/"):
                pytest.fail("there is no websocket")
    with pytest.raises(ConnectFailed):
        async with open_upstream_websocket(Address("127.0.0.1", free_port(), None, "m"), "/"):
            pytest.fail("there is no websocket")


async def test_a_connection_that_breaks_is_told_from_a_goodbye():
    async def vanish(request: WebSocketRequest) -> None:
        socket = await request.accept()
        await socket.send_message("hi")
        await socket._stream.aclose()

    async with websocket_server(vanish) as port, opened(port) as websocket:
        with trio.fail_after(PATIENCE):
            assert await websocket.receive() == "hi"
            assert await websocket.receive() is None
        assert websocket.closed.code == BROKEN


async def test_errors_of_the_user_come_out_as_they_are():
    async with websocket_server() as port:
        with pytest.raises(UpstreamFailed, match="mine"):
            async with open_upstream_websocket(Address("127.0.0.1", port, None, "m"), "/"):
                raise UpstreamFailed("m", "mine")
