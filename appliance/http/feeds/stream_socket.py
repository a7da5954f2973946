"""``/v1/stream/ws``: any number of streams over one websocket, and the way to stop them.

Messages are JSON texts. The client says ``{"type": "subscribe", "id", "from"}``, ``{"type": "unsubscribe", "id"}`` and
``{"type": "stop", "id"}``; it hears ``{"type": "data", "id", "from", "to", "data"}``, where ``to`` is what it resumes
at, ``{"type": "end", "id", "at"}`` and ``{"type": "error", "id", "error"}``.
"""

from __future__ import annotations

import codecs
from typing import Literal

import msgspec
import trio
from msgspec import Struct

from appliance.errors import ApplianceError, BadRequest
from appliance.http.errors import describe
from appliance.http.sockets.websocket import Receive, Send
from appliance.http.way.resumable import find_stream
from appliance.streams.generation import Generation
from appliance.streams.owner import Streams

MAX_SUBSCRIPTIONS = 64


class _Message(Struct):
    type: Literal["subscribe", "unsubscribe", "stop"]
    id: str
    offset: int = msgspec.field(default=0, name="from")


_MESSAGE = msgspec.json.Decoder(_Message)


async def serve_stream_socket(receive: Receive, send: Send, streams: Streams) -> None:
    """Accept the websocket and keep it until the client ends it. The caller has checked the key."""
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    async with trio.open_nursery() as nursery:
        await _Subscriptions(send, streams, nursery).serve(receive)
        nursery.cancel_scope.cancel()


class _Subscriptions:
    """What one client reads."""

    def __init__(self, send: Send, streams: Streams, nursery: trio.Nursery) -> None:
        self._send = send
        self._streams = streams
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def serve(self, receive: Receive) -> None:
        while True:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                return
            if event["type"] == "websocket.receive":
                await self._obey(event["text"] or event["bytes"] or b"")

    async def _obey(self, text: str | bytes) -> None:
        try:
            message = _MESSAGE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            await self._refuse("", BadRequest(f"the message cannot be used: {error}"))
            return
        match message.type:
            case "subscribe":
                await self._subscribe(message.id, message.offset)
            case "unsubscribe":
                self._unsubscribe(message.id)
            case "stop":
                self._streams.stop(message.id)

    async def _subscribe(self, conversation: str, offset: int) -> None:
        """In place of an earlier subscription of the same stream."""
        self._unsubscribe(conversation)
        if len(self._scopes) >= MAX_SUBSCRIPTIONS:
            await self._refuse(conversation, BadRequest(f"{MAX_SUBSCRIPTIONS} streams are subscribed to already"))
            return
        scope = self._scopes[conversation] = trio.CancelScope()
        self._nursery.start_soon(self._follow, conversation, max(offset, 0), scope)

    def _unsubscribe(self, conversation: str) -> None:
        scope = self._scopes.pop(conversation, None)
        if scope is not None:
            scope.cancel()

    async def _follow(self, conversation: str, offset: int, scope: trio.CancelScope) -> None:
        with scope:
            try:
                generation = await find_stream(self._streams, conversation)
                if offset < generation.ring.dropped:
                    raise BadRequest("Stream offset lost, please restart", param="from")
                await self._read(generation, offset)
            except ApplianceError as error:
                await self._refuse(conversation, error)
        if self._scopes.get(conversation) is scope:
            del self._scopes[conversation]

    async def _read(self, generation: Generation, offset: int) -> None:
        """A character whose bytes are not all there yet waits for the rest."""
        reader = generation.reader(offset)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        told = reader.offset
        while data := await reader.receive():
            text = decoder.decode(data)
            to = reader.offset - len(decoder.getstate()[0])
            if text:
                await self._say({"type": "data", "id": generation.conversation, "from": told, "to": to, "data": text})
            told = to
        if reader.overtaken:
            raise BadRequest("Stream offset lost, please restart", param="from")
        await self._say({"type": "end", "id": generation.conversation, "at": reader.offset})

    async def _refuse(self, conversation: str, error: ApplianceError) -> None:
        await self._say({"type": "error", "id": conversation, "error": describe(error)})

    async def _say(self, message: dict[str, object]) -> None:
        await self._send({"type": "websocket.send", "text": msgspec.json.encode(message).decode(), "bytes": None})
