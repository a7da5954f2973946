"""A model's server that speaks websockets, on trio-websocket. Argument: port.

It echoes messages and takes the last subprotocol on offer. Below these paths it does something else: ``/tell`` says
what it was asked for, ``/die`` exits after the first message, ``/note`` writes the code that its client closes with to
the file in argument 2. Every plain HTTP request is answered 200.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import sys
from functools import partial

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, wrap_server_stream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK"


async def serve(stream: trio.SocketStream) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head = await stream.socket.recv(1 << 16, sockets.MSG_PEEK)
        if not head:
            return
    if b"\r\nupgrade: websocket" not in head.lower():
        await stream.send_all(OK)
        await stream.aclose()
        return
    async with trio.open_nursery() as nursery:
        await answer(await wrap_server_stream(nursery, stream))
        nursery.cancel_scope.cancel()


async def answer(request: WebSocketRequest) -> None:
    names = request.proposed_subprotocols
    path = request.path.partition("?")[0]
    socket = await request.accept(subprotocol=names[-1] if names else None)
    try:
        if path.endswith("/tell"):
            headers = [[name.decode(), value.decode()] for name, value in request.headers]
            await socket.send_message(json.dumps({"target": request.path, "headers": headers}))
        while True:
            message = await socket.get_message()
            if path.endswith("/die"):
                os._exit(3)
            await socket.send_message(message)
    except ConnectionClosed as closed:
        if path.endswith("/note"):
            code = int(closed.reason.code) if closed.reason is not None else 0
            await trio.Path(sys.argv[2]).write_text(str(code))


if __name__ == "__main__":
    trio.run(partial(trio.serve_tcp, serve, int(sys.argv[1]), host="127.0.0.1"))
