"""A client's websocket joined to a server's: messages, closing codes and refusals in both directions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio

from appliance.errors import ApplianceError
from appliance.http.errors import body, describe, headers
from appliance.upstream.address import Address, Headers
from appliance.upstream.client import Response
from appliance.upstream.websocket import BROKEN, CLOSE_TIME, Close, UpstreamWebsocket, open_upstream_websocket

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, WebsocketScope

Receive = Callable[[], Awaitable["ASGIReceiveEvent"]]
Send = Callable[["ASGISendEvent"], Awaitable[None]]

INTERNAL = 1011
MAX_REFUSAL = 1 << 20
"""Bytes of a server's answer that there is no websocket."""
OF_THE_SERVER = (b"server", b"date", b"content-length")
CORS = b"access-control-"
MAX_REASON = 120
"""Bytes of a close frame's reason, less what a cut character could take; 123 fit."""


@asynccontextmanager
async def waiting_client(receive: Receive) -> AsyncGenerator[Callable[[], None]]:
    """Cancel the block when the client leaves before its handshake is answered, and pass over the rest of it.

    What is yielded ends the watch; it is called when the answer is at hand, before anybody else calls ``receive``.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        watch = trio.CancelScope()

        async def look() -> None:
            with watch:
                while (await receive())["type"] != "websocket.disconnect":
                    pass
                nursery.cancel_scope.cancel()

        nursery.start_soon(look)
        try:
            yield watch.cancel
        except Exception as error:  # noqa: BLE001 - it is raised again, outside, where no group is made of it
            failure = error
        watch.cancel()
    if failure is not None:
        raise failure


def _nothing() -> None:
    pass


async def relay_websocket(
    scope: WebsocketScope,
    receive: Receive,
    send: Send,
    address: Address,
    target: str,
    headers: Headers,
    *,
    answering: Callable[[], None] = _nothing,
) -> None:
    """Join the client's websocket with one to ``address``; returns when both have ended.

    The client is accepted only after the server has accepted; a server's refusal becomes the client's. ``headers`` have
    been through `forwardable` or `forwardable_to_peer`. ``answering`` is called before the client is answered (see
    `waiting_client`). Raises what `exchange` raises, before the client was answered.
    """
    async with open_upstream_websocket(address, target, headers, list(scope["subprotocols"])) as upstream:
        if isinstance(upstream, Response):
            content = await upstream.read(MAX_REFUSAL)
            answering()
            await _answer(send, upstream.status, _passed_on(upstream.headers), content)
            return
        answering()
        own = _passed_on(upstream.headers)
        await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": own})
        async with trio.open_nursery() as nursery:

            async def pass_messages_of_the_client() -> None:
                await _from_client(receive, upstream)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pass_messages_of_the_client)
            await _from_upstream(upstream, send, address.label)
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_TIME  # for the client's answer to the close


async def refuse_websocket(send: Send, error: ApplianceError) -> None:
    """Answer a handshake with an error, as the same request without an upgrade would be."""
    info = describe(error)
    await _answer(send, info.code, headers(error, close=False), body(info))


async def _from_client(receive: Receive, upstream: UpstreamWebsocket) -> None:
    """Until the client ends it, which it does too after the server's goodbye."""
    while True:
        event = await receive()
        if event["type"] == "websocket.receive":
            text = event["text"]
            await upstream.send(text if text is not None else event["bytes"] or b"")
        elif event["type"] == "websocket.disconnect":
            if event["code"] != BROKEN:  # else the server's connection breaks as the client's did
                await upstream.close(Close(event["code"], event["reason"] or "" if "reason" in event else ""))
            return


async def _from_upstream(upstream: UpstreamWebsocket, send: Send, label: str) -> None:
    while (message := await upstream.receive()) is not None:
        if isinstance(message, str):
            await send({"type": "websocket.send", "text": message, "bytes": None})
        else:
            await send({"type": "websocket.send", "text": None, "bytes": message})
    end = upstream.closed
    if end.code == BROKEN:
        reason = f"'{label}' broke the connection".encode()[:MAX_REASON].decode(errors="ignore")
        end = Close(INTERNAL, reason)
    await send({"type": "websocket.close", "code": end.code, "reason": end.reason})


def _passed_on(found: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what speaks of the server's own place; names in lower case, as ASGI wants them."""
    lower = [(name.lower(), value) for name, value in found]
    return [header for header in lower if header[0] not in OF_THE_SERVER and not header[0].startswith(CORS)]


async def _answer(send: Send, status: int, head: Iterable[tuple[bytes, bytes]], content: bytes) -> None:
    length = (b"content-length", str(len(content)).encode())
    start = {"type": "websocket.http.response.start", "status": status, "headers": [*head, length]}
    rest = {"type": "websocket.http.response.body", "body": content, "more_body": False}
    for event in (start, rest):
        await send(cast("ASGISendEvent", event))  # a TypedDict needs its literal in one piece
