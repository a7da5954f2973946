"""Another server's models: read from its ``/v1/models``, or received over the live link between two appliances.

Over the link, the websocket ``/api/link``, two appliances tell each other which models they have loaded, and how busy
those are. Text messages of JSON, the same in both directions. A ``models`` message holds the whole state and comes at
once and after every change; a ``ping`` shows that the sender is alive. Other types are for later versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE
from appliance.errors import ShuttingDown
from appliance.features.pool.core.shapes import ModelState
from appliance.fleet.owner import Fleet
from appliance.trio_parts import every
from appliance.upstream.websocket import NORMAL, Close

if TYPE_CHECKING:
    from appliance.http.sockets.handshake import Handshake
    from appliance.http.way.context import RequestContext
    from appliance.traffic.request import Request
    from appliance.traffic.traffic import Lifetime

MAX_MODELS = 10_000
LINK_PATH = "/api/link"
IDENTITIES = "/v1/models?identity=1"  # the listing with what each model is, which boxes of a pool ask each other for
PING_EVERY = 20.0
SILENCE = 50.0  # seconds without a word after which the other side is gone; two pings and some
PAUSE = 0.05  # seconds between two messages about changes, which come in bursts
MAX_MESSAGE = 4 << 20
PING = '{"type":"ping"}'


class _Status(Struct, frozen=True):
    value: str = "unloaded"


class _Entry(Struct, frozen=True):
    id: str
    status: _Status = _Status()
    meta: Mapping[str, object] | None = None
    identity: str | None = None

    @property
    def elsewhere(self) -> bool:
        """True if the server would have to ask a peer of its own, which may well be this program."""
        marks = (self.meta or {}).get("llamaswap")
        return isinstance(marks, dict) and "peerID" in marks


class _Listing(Struct, frozen=True):
    data: list[_Entry]


def read_listing(content: bytes) -> tuple[dict[str, ModelState], dict[str, str | None]]:
    """Return the server's own models, in its order, and what each listed model is (see `core.models.identity`).

    The latter is empty while the server works it out, and None where an older one does not tell. Raises
    msgspec.MsgspecError for anything but a listing.
    """
    listed = msgspec.json.decode(content, type=_Listing).data
    own = [entry for entry in listed if entry.id and not entry.elsewhere][:MAX_MODELS]
    states = {entry.id: ModelState(id=entry.id, state=entry.status.value) for entry in own}
    return states, {entry.id: entry.identity for entry in listed[:MAX_MODELS]}


def model_states(fleet: Fleet) -> list[ModelState]:
    """Return the models that have run here, as the link tells of them."""
    return [ModelState(id=s.model, state=s.state, busy=s.leases + s.waiting) for s in fleet.status()]


LocalState = Callable[[], Sequence[ModelState]]
Heard = Callable[[Sequence[ModelState]], None]
WaitChanged = Callable[[], Awaitable[object]]  # returns after the next change, also one before its first checkpoint


class Channel(Protocol):
    """One websocket, opened by either side."""

    async def send(self, text: str, /) -> object: ...

    async def receive(self) -> str | bytes | None:
        """None at the end."""
        ...


class _Message(Struct, frozen=True):
    type: str
    models: Sequence[ModelState] = ()


async def exchange_states(channel: Channel, heard: Heard, local_state: LocalState, wait_changed: WaitChanged) -> str:
    """Tell and listen until the link ends; returns why. ``heard`` gets every state of the other side, in order."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_states, channel, local_state, wait_changed)
        nursery.start_soon(every, PING_EVERY, partial(channel.send, PING))
        why = await _listen(channel, heard)
        nursery.cancel_scope.cancel()
    return why


async def _send_states(channel: Channel, local_state: LocalState, wait_changed: WaitChanged) -> None:
    told: list[ModelState] | None = None
    while True:
        if (state := list(local_state())) == told:
            await wait_changed()
            continue
        await channel.send(msgspec.json.encode({"type": "models", "models": state}).decode())
        told = state
        await trio.sleep(PAUSE)


async def _listen(channel: Channel, heard: Heard) -> str:
    while True:
        content: str | bytes | None = None
        with trio.move_on_after(SILENCE) as silence:
            content = await channel.receive()
        if silence.cancelled_caught:
            return f"nothing was heard for {SILENCE:g} s"
        if content is None:
            return "it ended the link"
        if len(content) > MAX_MESSAGE:
            return "it sent a message that is too long"
        try:
            message = msgspec.json.decode(content, type=_Message)
        except UNREADABLE as error:
            return f"it sent something else than a message ({error})"
        if message.type == "models":
            heard(message.models[:MAX_MODELS])


class PeerLink:
    """Serves the link for as long as the program accepts requests. ``guest`` is as in `Peers`."""

    def __init__(self, fleet: Fleet, guest: Callable[[str], AbstractContextManager[Heard]], lifetime: Lifetime) -> None:
        self._fleet, self._guest, self._lifetime = fleet, guest, lifetime

    def answers(self, request: Request) -> bool:
        return request.path == LINK_PATH

    async def serve(self, context: RequestContext, handshake: Handshake) -> None:
        lifetime, states = self._lifetime, partial(model_states, self._fleet)
        with lifetime.feeds.reading(), self._guest(context.request.client) as heard, lifetime.follower() as following:
            websocket = await handshake.accept(most=MAX_MESSAGE)
            why = await exchange_states(websocket, heard, states, self._fleet.wait_changed)
            await websocket.close(Close(NORMAL, why))
        if following.cancelled_caught:
            raise ShuttingDown
