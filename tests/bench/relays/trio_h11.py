"""Yardstick: the least relay that can be written with Trio and h11 on both sides. `trio_h11.py PORT UPSTREAM_PORT`."""

from __future__ import annotations

import sys

import h11
import trio

SIZE = 1 << 16
DROPPED = (b"connection", b"keep-alive", b"transfer-encoding")


async def next_event(connection: h11.Connection, stream: trio.SocketStream) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some(SIZE))
    return event


async def read_body(connection: h11.Connection, stream: trio.SocketStream) -> bytes:
    parts: list[bytes] = []
    while isinstance(event := await next_event(connection, stream), h11.Data):
        parts.append(bytes(event.data))
    return b"".join(parts)


async def send(connection: h11.Connection, stream: trio.SocketStream, *events: h11.Event) -> None:
    await stream.send_all(b"".join(connection.send(event) or b"" for event in events))


async def relay(
    request: h11.Request, body: bytes, upstream_port: int, client: h11.Connection, stream: trio.SocketStream
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", upstream_port) as upstream:
        server = h11.Connection(h11.CLIENT)
        headers = [(name, value) for name, value in request.headers if name not in DROPPED]
        head = h11.Request(method=request.method, target=request.target, headers=[*headers, (b"connection", b"close")])
        await send(server, upstream, head, h11.Data(data=body), h11.EndOfMessage())
        response = await next_event(server, upstream)
        assert isinstance(response, h11.Response)
        headers = [(name, value) for name, value in response.headers if name not in DROPPED]
        await send(client, stream, h11.Response(status_code=response.status_code, headers=headers))
        while isinstance(event := await next_event(server, upstream), h11.Data):
            await send(client, stream, h11.Data(data=event.data))
        await send(client, stream, h11.EndOfMessage())


async def main(port: int, upstream_port: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await serve_requests(stream)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # a client, or the upstream, left in the middle

    async def serve_requests(stream: trio.SocketStream) -> None:
        client = h11.Connection(h11.SERVER)
        while isinstance(request := await next_event(client, stream), h11.Request):
            body = await read_body(client, stream)
            await relay(request, body, upstream_port, client, stream)
            if client.our_state is h11.MUST_CLOSE:
                return
            client.start_next_cycle()

    await trio.serve_tcp(serve, port, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]))
