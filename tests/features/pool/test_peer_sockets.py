"""A client's websocket joined with a peer's."""

from __future__ import annotations

from collections.abc import Callable

from connection_harness import Gateway, echo, serving, websocket_server

from appliance.core.config.types import Config, Peer
from appliance.features.pool.peers import Peers, open_peers
from appliance.features.sockets.relay import join_peers
from appliance.http.sockets.handshake import Handshake
from appliance.traffic.request import Request
from appliance.upstream.client import Address
from appliance.upstream.websocket import Close, open_upstream_websocket


class Joining(Gateway):
    """Joins every websocket with a peer's."""

    def __init__(self, peers: Peers, *candidates: str) -> None:
        self._peers = peers
        self._candidates = [(name, "m") for name in candidates]

    async def join(self, request: Request, handshake: Handshake) -> None:
        await join_peers(self._peers, self._candidates, handshake, request.target, request.headers)


async def test_it_goes_to_the_peer_that_is_there(free_port: Callable[[], int]):
    async with websocket_server(echo) as port:
        gone, well = Peer(proxy=f"http://127.0.0.1:{free_port()}"), Peer(proxy=f"http://127.0.0.1:{port}")
        async with (
            open_peers(Config(peers={"gone": gone, "well": well})) as peers,
            serving(Joining(peers, "gone", "well")) as relay,
            open_upstream_websocket(Address("127.0.0.1", relay, None, "the relay"), "/") as websocket,
        ):
            assert await websocket.send("hello")
            assert await websocket.receive() == "hello"
            assert {status.id: status.busy for status in peers.snapshot()} == {"gone": 0, "well": 1}
            await websocket.close(Close(1000))
