"""Any ASGI application behind the program's own connections, and websocket servers for it to talk to."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from appliance.http.bytes.connection import Connection

Handler = Callable[[WebSocketRequest], Awaitable[None]]


class ProtocolConfig(Config):
    errorlog = None
    accesslog = None
    h11_pass_raw_headers = True

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        return [(b"Server", b"llama-appliance")]


@asynccontextmanager
async def serving(app: Callable[..., Awaitable[None]], *, port: int = 0) -> AsyncGenerator[int]:
    """Serve ``app`` on a free port of the loopback; yields the port. Leaving breaks all connections."""
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    config, context = ProtocolConfig(), WorkerContext(None)

    async def serve_one(stream: trio.SocketStream) -> None:
        accepted = stream.socket
        sock = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        sock.setblocking(False)
        await Connection(sock, ASGIWrapper(app), config, context, 10.0).run()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, serve_one, [listener]))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def websocket_server(handler: Handler) -> AsyncGenerator[int]:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, handler, "127.0.0.1", 0, None, max_message_size=1 << 27))
        yield server.port
        nursery.cancel_scope.cancel()


async def echo(request: WebSocketRequest) -> None:
    names = request.proposed_subprotocols
    connection = await request.accept(subprotocol=names[-1] if names else None, extra_headers=[(b"X-Extra", b"1")])
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except ConnectionClosed:
        pass
