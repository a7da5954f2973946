"""A client's websocket relayed to a server's, over the program's own connections."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from connection_harness import BODIES, Gateway, Handler, echo, serving, websocket_server
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_client_stream
from waiting import PATIENCE, until

from appliance.core.settings import HttpSettings
from appliance.features.sockets.relay import relay_websocket
from appliance.http.bytes.body import Bodies
from appliance.http.bytes.connection import RESET
from appliance.http.sockets import handshake as handshake_module
from appliance.http.sockets.handshake import Handshake
from appliance.traffic.request import Request
from appliance.upstream import websocket
from appliance.upstream.client import Address, forwardable_to_peer

LARGE = 1 << 27


class Relaying(Gateway):
    """Joins every websocket with a server's."""

    def __init__(self, port: int, bodies: Bodies = BODIES) -> None:
        self.bodies = bodies
        self._address = Address("127.0.0.1", port, "child-key", "alpha")

    async def join(self, request: Request, handshake: Handshake) -> None:
        await relay_websocket(handshake, self._address, request.path, forwardable_to_peer(request.headers))


@asynccontextmanager
async def wired(handler: Handler, bodies: Bodies = BODIES, **options) -> AsyncGenerator[trio.SocketStream]:
    """A client's connection to a relay to ``handler``."""
    with trio.fail_after(3 * PATIENCE):
        async with (
            websocket_server(handler) as server,
            serving(Relaying(server, bodies), **options) as port,
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            yield stream


@asynccontextmanager
async def relayed(handler: Handler, bodies: Bodies = BODIES, **options) -> AsyncGenerator[WebSocketConnection]:
    """A client's websocket, through the relay, to ``handler``."""
    async with wired(handler, bodies) as stream, trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, "localhost", "/", max_message_size=LARGE, **options)
        nursery.cancel_scope.cancel()


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def told(stream: trio.SocketStream, wire: bytes = HANDSHAKE) -> tuple[bytes, bytes]:
    """Head of the answer to this, and what follows it until the end."""
    await stream.send_all(wire)
    got = b""
    while data := await stream.receive_some():
        got += data
    head, _, content = got.partition(b"\r\n\r\n")
    return head, content


async def sleep(request: WebSocketRequest) -> None:
    await request.accept()
    await trio.sleep_forever()


async def test_messages_keep_their_kind_and_order():
    async with relayed(echo, subprotocols=["one", "two"]) as client:
        assert client.subprotocol == "two"
        assert (b"x-extra", b"1") in client.handshake_headers
        for message in ("text é", b"\x00\xff", "", b"", "x" * 3_000_000, b"y" * 3_000_000):
            await client.send_message(message)
            assert await client.get_message() == message


@pytest.mark.parametrize(("code", "reason"), [(1000, None), (4001, "enough é"), (1001, "going")])
async def test_the_servers_close_reaches_the_client(code: int, reason: str | None):
    async def close(request: WebSocketRequest) -> None:
        await (await request.accept()).aclose(code, reason)

    async with relayed(close) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.get_message()
        assert (closed.value.reason.code, closed.value.reason.reason) == (code, reason)


@pytest.mark.parametrize(("code", "reason"), [(1000, None), (4001, "enough é"), (1006, None)])
async def test_the_clients_end_reaches_the_server(code: int, reason: str | None):
    """Where it vanishes, the server's connection breaks as well."""
    heard: list[tuple[int, str | None]] = []
    ended = trio.Event()
    async with relayed(_noting(heard, ended)) as client:
        await (client._stream.aclose() if code == 1006 else client.aclose(code, reason))
        await ended.wait()
    assert heard == [(code, reason)]


def _noting(heard: list[tuple[int, str | None]], ended: trio.Event) -> Handler:
    async def note(request: WebSocketRequest) -> None:
        socket = await request.accept()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        if reason := closed.value.reason:
            heard.append((int(reason.code), reason.reason))
        ended.set()

    return note


async def test_a_refusal_passes_with_its_status_and_body():
    async def refuse(request: WebSocketRequest) -> None:
        await request.reject(418, body=b"no tea", extra_headers=[(b"X-Why", b"1")])

    async with wired(refuse) as stream:
        head, content = await told(stream)
    assert head.startswith(b"HTTP/1.1 418 ")
    assert b"\r\nx-why: 1" in head
    assert content == b"no tea"


async def test_a_server_that_is_not_there_is_an_error_with_words(free_port: Callable[[], int]):
    async with serving(Relaying(free_port())) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        head, content = await told(stream)
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"'alpha' failed: it does not accept connections" in content


async def test_a_client_that_leaves_before_the_server_answers():
    asked, left = trio.Event(), trio.Event()

    async def consider(request: WebSocketRequest) -> None:
        asked.set()
        await request._connection._close_handshake.wait()  # set when the connection breaks, too
        left.set()

    async with wired(consider) as stream:
        await stream.send_all(HANDSHAKE)
        await asked.wait()
        await stream.aclose()
        await left.wait()


WITH_BODY = HANDSHAKE.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n")


@pytest.mark.parametrize(
    ("handshake", "why"),
    [
        (HANDSHAKE.replace(b"13", b"12"), b"13"),
        *((WITH_BODY + body, b"has no body") for body in (b"hello", b"hel", b"")),
    ],
)
async def test_a_handshake_that_cannot_be_one_is_refused(handshake: bytes, why: bytes):
    async with wired(echo) as stream:
        head, content = await told(stream, handshake)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert why in content
    assert b"invalid_request_error" in content


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["server", "client"])
async def test_who_reads_slowly_slows_the_writer_down(reader: str):
    """Between the two ends only the sockets' buffers and a few messages fit; 64 MB more would not."""
    gone = 0
    message = b"x" * 100_000
    enough = trio.Event()

    async def write(socket: WebSocketConnection) -> None:
        nonlocal gone
        for _ in range(1000):
            await socket.send_message(message)
            gone += 1

    async def serve(request: WebSocketRequest) -> None:
        socket = await request.accept()
        if reader == "server":
            await enough.wait()
            for _ in range(1000):
                assert await socket.get_message() == message
            await socket.send_message("all")
        else:
            await write(socket)
        with pytest.raises(ConnectionClosed):
            await socket.get_message()

    async with relayed(serve) as client, trio.open_nursery() as nursery:
        if reader == "server":
            nursery.start_soon(write, client)
        before = -1
        while gone != before:
            before = gone
            await trio.sleep(0.2)
        assert 0 < gone < 360
        enough.set()
        if reader == "client":
            for _ in range(1000):
                assert await client.get_message() == message
        else:
            assert await client.get_message() == "all"
        assert gone == 1000


async def test_a_message_beyond_all_measure_ends_the_websocket():
    async with relayed(echo) as client:
        try:
            await client.send_message(b"x" * ((64 << 20) + 1))
        except ConnectionClosed:
            pass  # it ended while the message was under way
        with pytest.raises(ConnectionClosed) as closed:
            await client.get_message()
        assert closed.value.reason.code == 1009


async def test_unfinished_messages_count_against_the_budget_of_bodies(monkeypatch: pytest.MonkeyPatch):
    """One may not hold what the bodies of all requests together may not hold."""
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.5)
    settings = HttpSettings(max_bodies=3 << 20)
    part = b"\x01\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + b"x" * 60_000  # of a text that goes on
    rest = b"\x00" + part[1:]

    bodies = Bodies(settings)
    async with wired(sleep, bodies, settings=settings) as stream:
        await stream.send_all(HANDSHAKE + part + rest * 40)
        await until(lambda: bodies.held >= 2_000_000)
        await stream.send_all(rest * 40)
        got = b""
        while b"no room" not in got:
            got += await stream.receive_some()
        await stream.aclose()
        await until(lambda: not bodies.held)


async def test_a_taken_message_counts_no_longer():
    async with relayed(echo, Bodies(HttpSettings(max_bodies=1 << 20))) as client:
        for _ in range(5):
            await client.send_message("x" * 700_000)
            assert len(await client.get_message()) == 700_000


# ---- bytes that no good client sends ---------------------------------------------------------------------------------


def frame(opcode: int, payload: bytes, *, masked: bool = True) -> bytes:
    """One short frame; its mask changes nothing."""
    return bytes([0x80 | opcode, len(payload) | (0x80 if masked else 0)]) + bytes(4 if masked else 0) + payload


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(1, b"hello", masked=False), 1002),
        (frame(3, b""), 1002),
        (frame(0, b"goes on"), 1002),
        (frame(8, b"x"), 1002),
        (frame(8, (1006).to_bytes(2, "big")), 1002),
        (b"\xc1" + frame(1, b"compressed")[1:], 1002),
        (frame(1, b"\xff\xfe"), 1007),
    ],
)
async def test_who_breaks_the_protocol_is_told_so(wire: bytes, code: int):
    heard: list[tuple[int, str | None]] = []
    ended = trio.Event()
    async with wired(_noting(heard, ended)) as stream:
        head, got = await told(stream, HANDSHAKE + wire)
        await ended.wait()
    assert head.startswith(b"HTTP/1.1 101 ")
    assert got[0] == 0x88
    assert int.from_bytes(got[2:4], "big") == code
    assert [each[0] for each in heard] == [code]


async def test_messages_in_one_breath_with_the_handshake_are_not_lost():
    heard: list[str | bytes] = []

    async def note(request: WebSocketRequest) -> None:
        connection = await request.accept()
        try:
            while True:
                heard.append(await connection.get_message())
        except ConnectionClosed:
            pass

    frames = frame(1, b"early") + frame(2, b"bird") + frame(9, b"ping") + frame(8, b"\x03\xe8")
    async with wired(note) as stream:
        _, got = await told(stream, HANDSHAKE + frames)
    assert heard == ["early", b"bird"]
    assert got == frame(10, b"ping", masked=False) + frame(8, b"\x03\xe8", masked=False)


async def test_nothing_is_compressed():
    offer = HANDSHAKE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
    async with wired(echo) as stream:
        head, _ = await told(stream, offer + frame(8, b"\x03\xe8"))
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"extensions" not in head.lower()


async def test_a_ping_behind_our_goodbye_does_no_harm(caplog: pytest.LogCaptureFixture):
    async def close(request: WebSocketRequest) -> None:
        await (await request.accept()).aclose(4001)

    async with wired(close) as stream:
        await stream.send_all(HANDSHAKE)
        got = b""
        while frame(8, (4001).to_bytes(2, "big"), masked=False) not in got:
            got += await stream.receive_some()
        await stream.send_all(frame(9, b"ping"))
        assert await stream.receive_some() == b""
    assert not caplog.records


async def test_a_client_that_floods_and_is_gone_does_not_hold_the_server(monkeypatch: pytest.MonkeyPatch):
    """Nobody reads what it has sent, so that its leaving is not read, either."""
    monkeypatch.setattr(handshake_module, "CLOSE_TIME", 0.5)
    over = trio.Event()

    class Noting(Relaying):
        async def join(self, request: Request, handshake: Handshake) -> None:
            try:
                await super().join(request, handshake)
            finally:
                over.set()

    message = b"\x82\xff" + (100_000).to_bytes(8, "big") + bytes(100_004)
    async with websocket_server(sleep) as server, serving(Noting(server)) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(HANDSHAKE)
            await stream.receive_some()
            with trio.move_on_after(1) as full:
                for _ in range(1000):
                    await stream.send_all(message)
            assert full.cancelled_caught
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # else its goodbye waits behind the flood
        with trio.fail_after(PATIENCE):
            await over.wait()
