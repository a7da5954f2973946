"""hypercorn's side of a websocket, as a relay needs it.

hypercorn 0.18 tells an application neither with which code a client closed nor why, takes messages from a client faster
than the application does, without limit, and lets a client that broke the protocol go without a word.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import h11
import trio
from hypercorn.config import Config
from hypercorn.protocol.events import Event, Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    Scope,
    TaskGroup,
    WorkerContext,
)
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.events import Event as WsprotoEvent
from wsproto.frame_protocol import CloseReason

UNREAD = 1 << 18
"""Bytes of messages taken from the client before the application wants them; one message may be larger."""
MAX_MESSAGE = 64 << 20
"""Bytes, or characters, of one message; a longer one ends the connection with code 1009."""


class WebsocketProtocol(H11Protocol):
    """HTTP/1.1 whose websockets are `WebsocketStream`."""

    async def _create_stream(self, request: h11.Request) -> None:
        if not _asks_for_websocket(request) or not isinstance(self.connection, h11.Connection):
            await super()._create_stream(request)
            return
        self.stream = WebsocketStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.connection = H11WSConnection(self.connection)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=request.headers.raw_items(),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii"),
                raw_path=request.target,
                state=self.connection_state,
            )
        )


class WebsocketStream(WSStream):
    """One websocket of a client. Its disconnect event says ``code`` and ``reason`` as the client did, else 1006."""

    app_put: Callable[..., Awaitable[None]] | None

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        stream_id: int,
    ) -> None:
        super().__init__(self._run, config, context, task_group, ssl, client, server, send, stream_id)
        self._application = app
        self._end: CloseConnection | None = None
        self._parts: list[str | bytes] = []
        self._length = 0
        self._unread = 0
        self._ended = False
        self._room = trio.lowlevel.ParkingLot()

    async def handle(self, event: Event) -> None:
        if self.closed:
            return
        if isinstance(event, StreamClosed) and self._end is not None:
            self.closed = True
            await self._tell_end(int(self._end.code), self._end.reason or "")
            return
        await super().handle(event)
        if (
            self.closed and self._end is None and not isinstance(event, StreamClosed)
        ):  # hypercorn has answered 400, and leaves it at that
            await self._tell_end(CloseReason.ABNORMAL_CLOSURE.value, "")
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _tell_end(self, code: int, reason: str) -> None:
        if self.app_put is not None:
            await self.app_put({"type": "websocket.disconnect", "code": code, "reason": reason})

    async def _run(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., object],
        call_soon: Callable[..., object],
    ) -> None:
        """The application, whose taking of messages makes room for more."""

        async def receive_and_make_room() -> ASGIReceiveEvent:
            event = await receive()
            self._unread -= _size(event)
            self._room.unpark_all()
            return event

        try:
            await self._application(scope, receive_and_make_room, send, sync_spawn, call_soon)
        finally:
            self._ended = True
            self._room.unpark_all()

    async def _put(self, event: ASGIReceiveEvent) -> None:
        if self.app_put is None or self._ended:
            return
        self._unread += _size(event)
        await self.app_put(event)
        while self._unread > UNREAD and not self._ended:
            await self._room.park()

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            match event:
                case TextMessage() | BytesMessage():
                    if not await self._take(event):
                        return
                case Ping():
                    await self._send_wsproto_event(event.response())
                case CloseConnection():
                    await self._close(event)
                case _:
                    pass

    async def _take(self, event: TextMessage | BytesMessage) -> bool:
        """False: the message is too long, and nothing after it matters."""
        self._parts.append(event.data if isinstance(event.data, str) else bytes(event.data))
        self._length += len(event.data)
        if self._length > MAX_MESSAGE:
            await self._close(CloseConnection(CloseReason.MESSAGE_TOO_BIG, f"longer than {MAX_MESSAGE} bytes"))
            return False
        if event.message_finished:
            is_text = isinstance(event, TextMessage)
            parts, self._parts, self._length = self._parts, [], 0
            text = "".join(part for part in parts if isinstance(part, str)) if is_text else None
            data = None if is_text else b"".join(part for part in parts if isinstance(part, bytes))
            await self._put({"type": "websocket.receive", "text": text, "bytes": data})
        return True

    async def _close(self, event: CloseConnection) -> None:
        """The client's goodbye is answered; one that this side finds necessary is said."""
        if self.connection.state is ConnectionState.REMOTE_CLOSING:
            await self._send_wsproto_event(event.response())
        elif self.connection.state is ConnectionState.OPEN:
            await self._send_wsproto_event(event)
        self._end = self._end or event
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_wsproto_event(self, event: WsprotoEvent) -> None:
        if isinstance(event, CloseConnection) and event.code == CloseReason.NO_STATUS_RCVD:
            event = CloseConnection(CloseReason.NO_STATUS_RCVD)  # wsproto knows it by identity, and sends no code
        await super()._send_wsproto_event(event)


def _asks_for_websocket(request: h11.Request) -> bool:
    """RFC 6455 section 4.2.1; what else the handshake needs is looked at by hypercorn."""
    words = {b"connection": b"", b"upgrade": b""}
    for name, value in request.headers:
        if name in words:
            words[name] += value.lower() + b","
    tokens = [token.strip() for token in words[b"connection"].split(b",")]
    return request.method == b"GET" and b"upgrade" in tokens and words[b"upgrade"].strip(b", ") == b"websocket"


def _size(event: ASGIReceiveEvent) -> int:
    if event["type"] != "websocket.receive":
        return 0
    return len(event["bytes"] or b"") + len(event["text"] or "")
