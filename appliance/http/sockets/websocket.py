"""A client's websocket joined to a server's: messages, closing codes and refusals in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from appliance.http.sockets.handshake import INTERNAL, Handshake
from appliance.http.way.peer_relay import first_reached, for_peers
from appliance.peers.owner import Peers
from appliance.upstream.address import Address, Headers
from appliance.upstream.client import Response
from appliance.upstream.websocket import BROKEN, Close, Websocket, open_upstream_websocket

MAX_REFUSAL = 1 << 20
"""Bytes of a server's answer that there is no websocket."""
OF_THE_SERVER = (b"server", b"date", b"content-length")
CORS = b"access-control-"


async def relay_websocket(handshake: Handshake, address: Address, target: str, headers: Headers) -> None:
    """Join the client's websocket with one to ``address``; returns when both have ended.

    The client is accepted only after the server has accepted; a server's refusal becomes the client's. ``headers`` have
    been through `forwardable` or `forwardable_to_peer`. Raises what `Exchange` raises, and ClientLeft.
    """
    async with open_upstream_websocket(address, target, headers, handshake.subprotocols) as upstream:
        if isinstance(upstream, Response):
            content = await upstream.read(MAX_REFUSAL)
            await handshake.refuse(upstream.status, _passed_on(upstream.headers), content)
            return
        client = await handshake.accept(upstream.subprotocol, _passed_on(upstream.headers))
        if await _first_to_end(client, upstream) is client:
            if client.closed.code != BROKEN:  # else the server's connection breaks as the client's did
                await upstream.close(client.closed)
            return
        end = upstream.closed
        await client.close(Close(INTERNAL, f"'{address.label}' broke the connection") if end.code == BROKEN else end)


async def join_peers(
    peers: Peers, candidates: Sequence[tuple[str, str]], handshake: Handshake, target: str, headers: Headers
) -> None:
    """The same with the best of ``candidates`` that can be reached; see `answer_from_peers`."""
    passed = for_peers(headers, candidates)

    async def join(peer_id: str, model: str) -> None:
        await relay_websocket(handshake, peers.address(peer_id), target, passed)

    await first_reached(peers, candidates, join)


async def _first_to_end(client: Websocket, upstream: Websocket) -> Websocket:
    """Pass on messages both ways until one of the two ends. What is cut off goes to the one that has ended."""
    ended: list[Websocket] = []

    async def pass_on(sender: Websocket, receiver: Websocket) -> None:
        while (message := await sender.receive()) is not None:
            await receiver.send(message)
        ended.append(sender)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on, client, upstream)
        nursery.start_soon(pass_on, upstream, client)
    return ended[0]


def _passed_on(found: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what speaks of the server's own place."""
    lower = [(name.lower(), value) for name, value in found]
    return [header for header in lower if header[0] not in OF_THE_SERVER and not header[0].startswith(CORS)]
