"""The serving side of the live link between two appliances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.http.sockets.handshake import Handshake
from appliance.peers.link import MAX_MESSAGE, LocalState, WaitChanged, exchange_states
from appliance.peers.listing import ModelState
from appliance.upstream.websocket import NORMAL, Close


def _nobody(models: Sequence[ModelState]) -> None:
    """Ignore what the visitor has loaded: an appliance that asks it for models has a link of its own."""


async def serve_link(
    handshake: Handshake,
    local_state: LocalState,
    wait_changed: WaitChanged,
    heard: Callable[[Sequence[ModelState]], None] = _nobody,
) -> None:
    """Accept the websocket and keep it until either side ends it. The caller has checked the key.

    ``heard`` gets the models that the other appliance has loaded.
    """
    websocket = await handshake.accept(most=MAX_MESSAGE)
    why = await exchange_states(websocket, local_state, wait_changed, heard)
    await websocket.close(Close(NORMAL, why))
