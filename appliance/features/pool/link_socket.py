"""``/api/link``: the websocket by which two appliances tell each other what they have loaded."""

from __future__ import annotations

from functools import partial

from appliance.errors import ShuttingDown
from appliance.features.pool.link import (
    LINK_PATH,
    MAX_MESSAGE,
    Heard,
    LocalState,
    WaitChanged,
    exchange_states,
    model_states,
)
from appliance.features.pool.peers import Peers
from appliance.fleet.owner import Fleet
from appliance.http.sockets.handshake import Handshake
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request
from appliance.traffic.traffic import Lifetime
from appliance.upstream.websocket import NORMAL, Close


async def serve_link(handshake: Handshake, heard: Heard, local_state: LocalState, wait_changed: WaitChanged) -> None:
    """Accept the websocket and keep it until either side ends it. The caller has checked the key."""
    websocket = await handshake.accept(most=MAX_MESSAGE)
    why = await exchange_states(websocket, heard, local_state, wait_changed)
    await websocket.close(Close(NORMAL, why))


class PeerLink:
    """Serves the link for as long as the program accepts requests."""

    def __init__(self, fleet: Fleet, peers: Peers, lifetime: Lifetime) -> None:
        self._fleet, self._peers, self._lifetime = fleet, peers, lifetime

    def answers(self, request: Request) -> bool:
        return request.path == LINK_PATH

    async def serve(self, context: RequestContext, handshake: Handshake) -> None:
        peers, lifetime, states = self._peers, self._lifetime, partial(model_states, self._fleet)
        with lifetime.feeds.reading(), peers.guest(context.request.client) as heard, lifetime.follower() as following:
            await serve_link(handshake, heard, states, self._fleet.wait_changed)
        if following.cancelled_caught:
            raise ShuttingDown
