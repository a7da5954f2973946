"""The owner of all knowledge about the other servers: one task for each of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

import msgspec
import trio

from appliance.core.config.types import Config, Peer
from appliance.errors import PeerFailed
from appliance.peers.link import LocalState, ModelState, WaitChanged
from appliance.peers.peer import LocalSide, PeerStatus, RemotePeer
from appliance.trio_parts import Changed
from appliance.upstream.client import Address


class Peers:
    """Made by `open_peers`. Everything except `wait_changed` is synchronous."""

    def __init__(self, nursery: trio.Nursery, local: LocalSide) -> None:
        self._nursery = nursery
        self._local = local
        self._peers: dict[str, RemotePeer] = {}
        self._guests: dict[object, tuple[str, Sequence[ModelState]]] = {}
        self._news = Changed()

    def adopt(self, config: Config | None) -> None:
        """Follow the peers of a configuration. An unchanged peer keeps its task and its link.

        Raises UsageError for an address that cannot be used, and changes nothing then.
        """
        wanted = config.peers if config is not None else {}
        peers = {peer_id: self._kept(peer_id, peer) or self._new(peer_id, peer) for peer_id, peer in wanted.items()}
        before, self._peers = self._peers, peers
        for peer in before.values():
            if peers.get(peer.id) is not peer:
                peer.scope.cancel()
        for peer in peers.values():
            if before.get(peer.id) is not peer:
                self._nursery.start_soon(peer.run, name=f"peer {peer.id}")
        self._tell()

    # ---- choosing and asking -----------------------------------------------------------------------------------------

    def order(self, candidates: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return pairs of peer id and model, best first: those that are not down, then where the model is loaded, then
        the least busy, then in the given order.

        A peer that was down may be well again, so none is left out, except unknown ids.
        """

        def rank(candidate: tuple[str, str]) -> tuple[bool, bool, int]:
            peer = self._peers[candidate[0]]
            return peer.up is False, not peer.state_of(candidate[1]).loaded, peer.load

        return sorted((pair for pair in candidates if pair[0] in self._peers), key=rank)

    def address(self, peer_id: str) -> Address:
        """Return the peer's address. Raises PeerFailed when the configuration has no such peer any more."""
        return self._get(peer_id).address

    def using(self, peer_id: str) -> AbstractContextManager[None]:
        """Count one request at the peer for as long as the block runs. Raises PeerFailed as `address` does."""
        return self._get(peer_id).using()

    def failed(self, peer_id: str, why: str) -> None:
        """A request could not reach the peer: it comes last until its task finds it well again."""
        if peer_id in self._peers:
            self._peers[peer_id].is_down(why)

    def answered(self, peer_id: str) -> None:
        """A request reached the peer: it is well."""
        if peer_id in self._peers:
            self._peers[peer_id].is_up()

    # ---- knowing -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[PeerStatus, ...]:
        """Return the states in the order of the configuration."""
        return tuple(peer.status for peer in self._peers.values())

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return peer ids and their models: everything that `complete` depends on, and cheap."""
        return tuple([(peer.id, peer.models) for peer in self._peers.values()]) if self._peers else ()

    def complete(self, config: Config) -> Config:
        """Return the configuration with the models that peers list if it names none, for resolving names."""
        peers = {
            peer_id: msgspec.structs.replace(peer, models=list(self._peers[peer_id].models))
            if not peer.models and peer_id in self._peers
            else peer
            for peer_id, peer in config.peers.items()
        }
        return msgspec.structs.replace(config, peers=peers)

    @contextmanager
    def guest(self, label: str) -> Generator[Callable[[Sequence[ModelState]], None]]:
        """Keep another appliance's report about itself while the block runs; for the serving side of a link."""
        token = object()

        def heard(models: Sequence[ModelState]) -> None:
            self._guests[token] = (label, models)
            self._tell()

        try:
            yield heard
        finally:
            self._guests.pop(token, None)
            self._tell()

    def guests(self) -> list[tuple[str, Sequence[ModelState]]]:
        """Return the appliances that are linked to this one: their label and models."""
        return list(self._guests.values())

    async def wait_changed(self) -> None:
        """Return after the next change of anything above."""
        await self._news.wait()

    def _tell(self) -> None:
        self._news.wake()

    def _get(self, peer_id: str) -> RemotePeer:
        try:
            return self._peers[peer_id]
        except KeyError:
            raise PeerFailed(peer_id, "it is not in the configuration any more") from None

    def _kept(self, peer_id: str, config: Peer) -> RemotePeer | None:
        peer = self._peers.get(peer_id)
        return peer if peer is not None and peer.config == config else None

    def _new(self, peer_id: str, config: Peer) -> RemotePeer:
        return RemotePeer(peer_id, config, self._local, self._tell)


def _nothing() -> Sequence[ModelState]:
    return ()


@asynccontextmanager
async def open_peers(
    config: Config | None, *, local_state: LocalState = _nothing, wait_changed: WaitChanged = trio.sleep_forever
) -> AsyncGenerator[Peers]:
    """Own the tasks of the peers of ``config``. Appliances among them receive ``local_state`` after every change.

    Raises UsageError for an address that cannot be used.
    """
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery, LocalSide(local_state, wait_changed))
        peers.adopt(config)
        yield peers
        nursery.cancel_scope.cancel()
