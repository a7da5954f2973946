"""``/v1/stream/ws``: a websocket that carries any number of streams.

Its messages are JSON texts. The client says ``{"type": "subscribe", "id", "from"}``, ``{"type": "unsubscribe", "id"}``
and ``{"type": "stop", "id"}``; it receives ``{"type": "data", "id", "from", "to", "data"}``, where ``to`` is what it
resumes at, ``{"type": "end", "id", "at"}`` and ``{"type": "error", "id", "error"}``.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import msgspec
import trio
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE
from appliance.errors import ApplianceError, BadRequest, UpstreamFailed
from appliance.features.streams.ids import ConversationIds, check_held, find_stream, name_of
from appliance.features.streams.owner import Streams
from appliance.http.errors import describe
from appliance.http.sockets.handshake import Handshake
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.http.way.routes import SOCKET
from appliance.replay.generation import BROKE_OFF, Generation
from appliance.traffic.request import Request
from appliance.trio_parts import beside
from appliance.upstream.websocket import Websocket

MAX_SUBSCRIPTIONS = 64
MAX_ORDER = 1 << 16  # bytes of a client's message, which is one id and an offset


class _Message(Struct):
    type: Literal["subscribe", "unsubscribe", "stop"]
    id: str
    offset: int = msgspec.field(default=0, name="from")


_MESSAGE = msgspec.json.Decoder(_Message)


class StreamSocket:
    """A `SocketRoute`: serves the websocket until the client ends it."""

    def __init__(self, streams: Streams, edge: Edge) -> None:
        self._streams = streams
        self._edge = edge

    def answers(self, request: Request) -> bool:
        return request.path == SOCKET

    async def serve(self, context: RequestContext, handshake: Handshake) -> None:
        with self._edge.traffic.lifetime.feeds.reading():
            holder = self._edge.guard.holder(context.request)
            websocket = await handshake.accept(most=MAX_ORDER)
            async with beside() as nursery:
                await _Subscriptions(websocket, self._streams.ids, nursery, holder).serve()


class _Subscription:
    """Ends between two messages: one that is cut off would be the end of the whole websocket."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._saying = False
        self._over = False

    def end(self) -> None:
        self._over = True
        if not self._saying:
            self.scope.cancel()

    @contextmanager
    def saying(self) -> Generator[None]:
        self._saying = True
        yield
        self._saying = False
        if self._over:
            self.scope.cancel()


class _Subscriptions:
    """The streams that one client reads."""

    def __init__(self, websocket: Websocket, ids: ConversationIds, nursery: trio.Nursery, holder: str) -> None:
        self._websocket = websocket
        self._holder = holder
        self._ids = ids
        self._nursery = nursery
        self._followed: dict[str, _Subscription] = {}

    async def serve(self) -> None:
        while (message := await self._websocket.receive()) is not None:
            await self._obey(message)

    async def _obey(self, text: str | bytes) -> None:
        try:
            message = _MESSAGE.decode(text)
        except UNREADABLE as error:
            await self._refuse("", BadRequest(f"the message cannot be used: {error}"))
            return
        match message.type:
            case "subscribe":
                self._unsubscribe(message.id)  # an earlier one of the same stream
                if len(self._followed) >= MAX_SUBSCRIPTIONS:
                    full = BadRequest(f"{MAX_SUBSCRIPTIONS} streams are subscribed to already")
                    await self._refuse(message.id, full)
                    return
                subscription = self._followed[message.id] = _Subscription()
                self._nursery.start_soon(self._follow, message.id, max(message.offset, 0), subscription)
            case "unsubscribe":
                self._unsubscribe(message.id)
            case "stop":
                self._ids.stop_stream(name_of(message.id, self._holder))

    def _unsubscribe(self, conversation: str) -> None:
        subscription = self._followed.pop(conversation, None)
        if subscription is not None:
            subscription.end()

    async def _follow(self, conversation: str, offset: int, subscription: _Subscription) -> None:
        with subscription.scope:
            try:
                generation = await find_stream(self._ids, name_of(conversation, self._holder))
                check_held(offset, generation.ring.dropped)
                await self._read(generation, offset, subscription)
            except ApplianceError as error:
                with subscription.saying():
                    await self._refuse(conversation, error)
        if self._followed.get(conversation) is subscription:
            del self._followed[conversation]

    async def _read(self, generation: Generation, offset: int, subscription: _Subscription) -> None:
        """A character whose bytes are not all there yet waits for the rest."""
        name, reader = generation.conversation, generation.reader(offset)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        told = reader.offset
        while data := await reader.receive():
            text = decoder.decode(data)
            to = reader.offset - len(decoder.getstate()[0])
            if text:
                with subscription.saying():
                    await self._say({"type": "data", "id": name, "from": told, "to": to, "data": text})
            told = to
        if reader.overtaken:
            check_held(reader.offset, generation.ring.dropped)
        if reader.closing() is None:
            raise UpstreamFailed(name, BROKE_OFF)
        with subscription.saying():
            await self._say({"type": "end", "id": name, "at": reader.offset})

    async def _refuse(self, conversation: str, error: ApplianceError) -> None:
        await self._say({"type": "error", "id": conversation, "error": describe(error)})

    async def _say(self, message: dict[str, object]) -> None:
        await self._websocket.send(msgspec.json.encode(message).decode())
