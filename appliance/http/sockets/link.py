"""The serving side of the live link between two appliances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from appliance.http.sockets.websocket import Receive, Send
from appliance.peers.link import LocalState, WaitChanged, exchange_states
from appliance.peers.listing import ModelState

if TYPE_CHECKING:
    from hypercorn.typing import WebsocketScope

NORMAL = 1000


def _nobody(models: Sequence[ModelState]) -> None:
    """What a visitor has loaded matters to whoever asks it for models; that is told over that one's own link."""


async def serve_link(
    scope: WebsocketScope,
    receive: Receive,
    send: Send,
    local_state: LocalState,
    wait_changed: WaitChanged,
    heard: Callable[[Sequence[ModelState]], None] = _nobody,
) -> None:
    """Accept the websocket and keep it until either side ends it. The caller has checked the key.

    ``heard`` is told what the other appliance has loaded.
    """
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    why = await exchange_states(_Client(receive, send), local_state, wait_changed, heard)
    await send({"type": "websocket.close", "code": NORMAL, "reason": why})


class _Client:
    """An ASGI websocket as the link's channel."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def send(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text, "bytes": None})

    async def receive(self) -> str | bytes | None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.receive":
                return event["text"] if event["text"] is not None else event["bytes"]
            if event["type"] == "websocket.disconnect":
                return None
