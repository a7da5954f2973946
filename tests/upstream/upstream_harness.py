"""Servers of a few lines, each a function from one connection to what it does with it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

Serve = Callable[[trio.abc.Stream], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def listening(
    serve: Serve, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Serve on a free port of ``host``; yields the port."""

    async def serve_one(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the client left
            async with stream:
                await serve(stream)

    if tls is None:
        listeners = await trio.open_tcp_listeners(port, host=host)
        number = listeners[0].socket.getsockname()[1]
    else:
        listeners = await trio.open_ssl_over_tcp_listeners(port, tls, host=host, https_compatible=True)
        number = listeners[0].transport_listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, serve_one, listeners))
        yield number
        nursery.cancel_scope.cancel()


async def read_request(stream: trio.abc.Stream) -> bytes:
    """Head and body of one request."""
    got = b""
    while b"\r\n\r\n" not in got:
        data = await stream.receive_some(1 << 16)
        if not data:
            return got
        got += data
    head, _, body = got.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += await stream.receive_some(1 << 16)
    return head + b"\r\n\r\n" + body


def answering(content: bytes, seen: list[bytes] | None = None) -> Serve:
    """Read a request, keep it in ``seen``, and say ``content``."""

    async def serve(stream: trio.abc.Stream) -> None:
        request = await read_request(stream)
        if seen is not None:
            seen.append(request)
        await stream.send_all(content)

    return serve
