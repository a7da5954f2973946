"""Yardstick: an ASGI relay under Hypercorn on Trio, with an h11 client. `hypercorn_asgi.py PORT UPSTREAM_PORT`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType] - the WSGI half of its type
from trio_h11 import DROPPED, next_event, send


async def app(upstream_port: int, scope: Any, receive: Any, send_to_client: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send_to_client({"type": "lifespan.startup.complete"})
        await send_to_client({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    async with await trio.open_tcp_stream("127.0.0.1", upstream_port) as upstream:
        server = h11.Connection(h11.CLIENT)
        headers = [(name, value) for name, value in scope["headers"] if name not in DROPPED]
        head = h11.Request(
            method=scope["method"], target=scope["raw_path"], headers=[*headers, (b"connection", b"close")]
        )
        await send(server, upstream, head, h11.Data(data=body), h11.EndOfMessage())
        response = await next_event(server, upstream)
        assert isinstance(response, h11.Response)
        headers = [(name, value) for name, value in response.headers if name not in DROPPED]
        await send_to_client({"type": "http.response.start", "status": response.status_code, "headers": headers})
        while isinstance(event := await next_event(server, upstream), h11.Data):
            await send_to_client({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await send_to_client({"type": "http.response.body", "body": b"", "more_body": False})


def main(port: int, upstream_port: int) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    relay: Any = partial(app, upstream_port)
    trio.run(partial(serve, relay, config, mode="asgi"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
