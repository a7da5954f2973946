"""The owner of all knowledge about the other servers: one task for each of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.config.types import Config, Peer
from appliance.core.models.holders import Holder
from appliance.errors import PeerFailed
from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import IDENTITIES, Heard, LocalState, WaitChanged, exchange_states
from appliance.features.pool.remote_peer import FIRST_PAUSE, PeerStatus, RemotePeer
from appliance.traffic.other_servers import Pair
from appliance.trio_parts import Changed, beside
from appliance.upstream.client import Address, address_of

if TYPE_CHECKING:
    from appliance.features.pool.core.placing import BoxChoice  # a program without a pool does not need it


class Orders(Protocol):
    """The pool's agreement on which box loads a model."""

    async def place(self, model_id: str, decide: Callable[[], BoxChoice | None]) -> str | None:
        """Return the box that the pool has told to load the model: the one of ``decide``, or the one of another's
        decision that is fresh. None: choose without orders. Returns within a second.
        """
        ...


class PoolSide(Struct, frozen=True, kw_only=True):
    """The other facts of a pool that decide where requests go."""

    me: str = ""  # the name of this box
    drained: Collection[str] = ()  # boxes that get new requests only where no other one can answer
    speeds: Mapping[str, float] = {}  # by box, in a unit that all boxes share
    orders: Orders | None = None  # None: boxes load what does not evict, and nothing is fetched


class Peers:
    """The `OtherServers` that there are, which says more of its methods. Made by `open_peers`."""

    def __init__(self, nursery: trio.Nursery, own_states: LocalState, wait_changed: WaitChanged) -> None:
        self._nursery = nursery
        self.own_states = own_states  # what this program tells others of its own models
        self._configured: dict[str, RemotePeer] = {}
        self._members: dict[str, RemotePeer] = {}
        self._peers: dict[str, RemotePeer] = {}  # all; a box of the pool hides a configured peer of its id
        self.side = PoolSide()
        self._guests: dict[object, tuple[str, Sequence[ModelState]]] = {}
        self._news = Changed()
        self.wait_changed = self._news.wait
        tell = partial(exchange_states, local_state=own_states, wait_changed=wait_changed)
        self._make = partial(RemotePeer, tell=tell, changed=self._news.wake)

    def adopt(self, config: Config | None) -> None:
        """Follow a configuration; unchanged peers keep their tasks. Raises UsageError, and changes nothing then."""
        wanted = config.peers if config is not None else {}
        kept = {peer_id: peer for peer_id, peer in self._configured.items() if peer.config == wanted.get(peer_id)}
        configured = {
            id: kept.get(id)
            or self._make(id, address_of(peer.proxy, id, api_key=peer.api_key, timeouts=peer.timeouts), peer)
            for id, peer in wanted.items()
        }
        self._exchange(configured, self._members)

    def adopt_members(self, doors: Mapping[str, Address], side: PoolSide | None = None) -> None:
        """Follow the pool's list of the other boxes, by name; configured peers and unchanged boxes keep their tasks."""
        self.side = side or PoolSide()
        kept = {id: peer for id, peer in self._members.items() if peer.address == doors.get(id)}
        made: dict[str, RemotePeer] = {}
        for id, door in doors.items():
            url = f"{'https' if door.tls else 'http'}://{door.authority.decode()}{door.base_path}"
            made[id] = kept.get(id) or self._make(id, door, Peer(proxy=url), lists=IDENTITIES)
        self._exchange(self._configured, made)

    def _exchange(self, configured: dict[str, RemotePeer], members: dict[str, RemotePeer]) -> None:
        before = [*self._configured.values(), *self._members.values()]
        after = [*configured.values(), *members.values()]
        self._configured, self._members, self._peers = configured, members, {**configured, **members}
        for peer in before:
            if peer not in after:
                peer.scope.cancel()
        for peer in after:
            if peer not in before:
                self._nursery.start_soon(peer.run, name=f"peer {peer.id}")
        self._news.wake()

    def seen(self, member_id: str, is_up: bool | None, why: str = "") -> None:
        """The pool sees a box again, or has lost sight of it: then it comes last until its task finds it well.

        None: it may not be what is known of it, and is looked at in a second. Call it at the change.
        """
        member = self._members.get(member_id)
        if member is not None and is_up is False:
            member.is_down(why)
        elif member is not None and (is_up is None or member.up is False):
            member.look_within(FIRST_PAUSE if is_up is None else 0)

    def members(self) -> Collection[RemotePeer]:
        """Return the other boxes of the pool."""
        return self._members.values()

    def boxes(self) -> Mapping[str, tuple[str, ...]]:
        return {id: peer.models for id, peer in self._members.items()}

    def boxes_in_reach(self) -> list[str]:
        return [id for id, peer in self._members.items() if peer.up is not False]

    @property
    def me(self) -> str:
        return self.side.me

    @property
    def revision(self) -> int:
        return max([peer.revision for peer in self._members.values()]) if self._members else 0

    def holders(self, model: str) -> list[Holder]:
        return [Holder(id, peer.identities.get(model)) for id, peer in self._members.items() if model in peer.models]

    def decides(self, boxes: Sequence[Pair]) -> bool:
        known = [(self._members[box], model) for box, model in boxes if box in self._members]
        return self.side.me in self.side.drained or any(box.up and box.state_of(model).loaded for box, model in known)

    def order(self, candidates: Sequence[Pair]) -> list[Pair]:
        """Return pairs of peer id and model, best first: those that are not down, then where the model is loaded, then
        the least busy, then in the given order.

        A peer that was down may be well again, so none is left out, except unknown ids.
        """

        def rank(candidate: Pair) -> tuple[bool, bool, int]:
            peer = self._peers[candidate[0]]
            return peer.up is False, not peer.state_of(candidate[1]).loaded, peer.load

        return sorted((pair for pair in candidates if pair[0] in self._peers), key=rank)

    def may_answer(self, candidates: Sequence[Pair]) -> bool:
        return any(peer_id in self._peers and self._peers[peer_id].up is not False for peer_id, _ in candidates)

    def address(self, peer_id: str) -> Address:
        return self.get(peer_id).address

    def using(self, peer_id: str) -> AbstractContextManager[None]:
        return self.get(peer_id).using()

    def failed(self, peer_id: str, why: str) -> None:
        """A request could not reach the peer: it comes last until its task finds it well again."""
        if peer_id in self._peers:
            self._peers[peer_id].is_down(why)

    def answered(self, peer_id: str) -> None:
        """A request reached the peer: it is well."""
        if peer_id in self._peers:
            self._peers[peer_id].is_up()

    def snapshot(self) -> tuple[PeerStatus, ...]:
        """Return the states in the order of the configuration, the pool's boxes behind it."""
        return tuple(peer.status for peer in self._peers.values())

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple([(peer.id, peer.models) for peer in self._peers.values()]) if self._peers else ()

    def loaded(self) -> list[Pair]:
        return [(one.id, model) for one in self._peers.values() for model in one.models if one.state_of(model).loaded]

    def complete(self, config: Config) -> Config:
        wanted = {**config.peers, **{id: member.config for id, member in self._members.items()}}
        peers = {
            peer_id: msgspec.structs.replace(peer, models=list(self._peers[peer_id].models))
            if not peer.models and peer_id in self._peers
            else peer
            for peer_id, peer in wanted.items()
        }
        return msgspec.structs.replace(config, peers=peers)

    @contextmanager
    def guest(self, label: str) -> Generator[Heard]:
        """Keep another appliance's report about itself while the block runs; for the serving side of a link."""
        token = object()

        def on_states(models: Sequence[ModelState]) -> None:
            self._guests[token] = (label, models)
            self._news.wake()

        try:
            yield on_states
        finally:
            self._guests.pop(token, None)
            self._news.wake()

    def guests(self) -> list[tuple[str, Sequence[ModelState]]]:
        """Return the appliances that are linked to this one: their label and models."""
        return list(self._guests.values())

    def get(self, peer_id: str) -> RemotePeer:
        """Raises PeerFailed."""
        if (found := self._peers.get(peer_id)) is None:
            raise PeerFailed(peer_id, "it is not in the configuration any more")
        return found


@asynccontextmanager
async def open_peers(
    config: Config | None, local_state: LocalState = tuple, wait_changed: WaitChanged = trio.sleep_forever
) -> AsyncGenerator[Peers]:
    """Own the tasks of ``config``'s peers, which get ``local_state`` after every change. Raises UsageError."""
    async with beside() as nursery:
        peers = Peers(nursery, local_state, wait_changed)
        peers.adopt(config)
        yield peers
