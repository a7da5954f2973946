"""The owner of all knowledge about the other servers: one task for each of them."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.config.types import Config, Peer
from appliance.core.headers import field
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.holders import Holder
from appliance.errors import Busy, PeerFailed, UpstreamFailed
from appliance.features.pool.core.names import groups_of
from appliance.features.pool.link import (
    IDENTITIES,
    LINK_PATH,
    LocalState,
    ModelState,
    WaitChanged,
    exchange_states,
    read_identities,
    read_listing,
)
from appliance.trio_parts import Changed, beside, persist
from appliance.upstream.client import Address, HttpAnswer, HttpCall, address_of
from appliance.upstream.websocket import open_upstream_websocket

if TYPE_CHECKING:
    from appliance.features.pool.core.placing import BoxChoice  # a program without a pool does not need it

LOOK_EVERY = 60.0
"""Seconds between two looks at a server that is well."""
LOOK_TIME = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until a server that is down is looked at again; doubled every time."""
REFUSED_PAUSE = 60.0
"""Seconds until a link is asked for again that the other side does not want."""
MAX_LISTING = 16 << 20
UNKNOWN_PAUSE = 2.0
"""Seconds until a box is looked at again that is still working out what its models are."""
_revisions = count(1)
APPLIANCE = b"llama-appliance"
"""The program's name in a Server header."""


class PeerStatus(Struct, frozen=True, kw_only=True):
    """The state of one peer at one moment."""

    id: str
    url: str
    up: bool | None
    """None: nobody has looked yet."""
    error: str | None
    appliance: bool
    linked: bool
    busy: int
    """Requests of this program that it works on."""
    models: tuple[ModelState, ...]


class Member(Struct, frozen=True, kw_only=True):
    """Another box of this program's pool. ``address`` is the one of its door."""

    id: str
    """The box's name."""
    address: Address

    @property
    def url(self) -> str:
        scheme = "https" if self.address.tls else "http"
        return f"{scheme}://{self.address.authority.decode()}{self.address.base_path}"


class Orders(Protocol):
    """The pool's agreement on which box loads a model."""

    async def place(self, model_id: str, decide: Callable[[], BoxChoice | None]) -> str | None:
        """Return the box that the pool has told to load the model: the one of ``decide``, or the one of another's
        decision that is fresh. None: choose without orders. Returns within a second.
        """
        ...


class PoolSide(Struct, frozen=True, kw_only=True):
    """The other facts of a pool that decide where requests go."""

    me: str = ""
    """The name of this box."""
    drained: Collection[str] = ()
    """Boxes that get new requests only where no other one can answer."""
    speeds: Mapping[str, float] = {}
    """By box, in a unit that all boxes share."""
    orders: Orders | None = None
    """None: boxes load what does not evict, and nothing is fetched."""


class LocalSide(Struct, frozen=True):
    """The report to the other side of a link."""

    state: LocalState
    wait_changed: WaitChanged


class RemotePeer:
    """Owned by `Peers`, which runs `run` as a task. Every change calls ``changed``."""

    def __init__(
        self,
        peer_id: str,
        address: Address,
        config: Peer,
        local: LocalSide,
        changed: Callable[[], None],
        *,
        lists: str = "/v1/models",
    ) -> None:
        self.id = peer_id
        self.config = config
        self.address = address
        self.up: bool | None = None
        self.error: str | None = None
        self.models = tuple(config.models)
        """Return the models of the file, or else those that the server lists."""
        self.scope = trio.CancelScope()
        """Cancelling it ends `run`."""
        self.revision = 0
        """A number that no other listing has: it changes with the listing."""
        self._lists = lists
        self._local = local
        self._changed = changed
        self._busy = 0
        self._attended: set[trio.CancelScope] = set()
        self._appliance = False
        self._listed: dict[str, ModelState] = {}
        self._identities: dict[str, str | None] = {}
        self._told: dict[str, ModelState] | None = None
        self._failures = 0
        self._due = -math.inf
        self._rescheduled = trio.Event()
        self._link_wanted = trio.Event()

    @property
    def status(self) -> PeerStatus:
        return PeerStatus(
            id=self.id,
            url=self.config.proxy,
            up=self.up,
            error=self.error,
            appliance=self._appliance,
            linked=self._told is not None,
            busy=self._busy,
            models=tuple(self.state_of(model) for model in self.models),
        )

    @property
    def load(self) -> int:
        """Known requests under way there; those of other clients come over the link only."""
        return max(self._busy, sum(model.busy for model in (self._told or {}).values()))

    def state_of(self, model: str) -> ModelState:
        """A link tells of all that runs there; without one the last look has to do."""
        known = self._listed if self._told is None else self._told
        return known.get(model) or ModelState(id=model)

    def identity_of(self, model: str) -> str | None:
        """Return what the model is there, see `read_identities`."""
        return self._identities.get(model)

    @contextmanager
    def using(self) -> Generator[None]:
        self._busy += 1
        self._changed()
        try:
            yield
        finally:
            self._busy -= 1
            self._changed()

    @contextmanager
    def attended(self) -> Generator[None]:
        """The same as `using`, but a block that waits for a server which is gone ends. Raises UpstreamFailed then.

        A frozen machine and a cable that is out leave connections open. So a server is given up when a second witness
        agrees: its look has failed while something else had called it down, which may be an earlier look.
        """
        with self.using(), trio.CancelScope() as scope:
            self._attended.add(scope)
            try:
                yield
            finally:
                self._attended.discard(scope)
        if scope.cancelled_caught:
            raise UpstreamFailed(self.id, f"it is silent: {self.error}")

    def is_up(self) -> None:
        self._failures = 0
        if self.up is not True or self.error is not None:
            self.up, self.error = True, None
            self._changed()

    def is_down(self, why: str) -> None:
        """A request could not reach it, or a look at it failed. Its next look is due after a pause that grows."""
        was_up = self.up is not False
        if was_up or self.error != why:
            self.up, self.error = False, why
            self._changed()
        if was_up:
            self._failures = 1
            self._look_within(FIRST_PAUSE)

    def is_seen(self) -> None:
        """Something else than a request has seen it. A look tells whether it can be reached as well."""
        if self.up is False:
            self._look_within(0)

    def is_doubted(self) -> None:
        """Something says that it is not what its last look showed."""
        self._look_within(FIRST_PAUSE)

    # ---- the task ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the server, and stay linked to it where it is an appliance, until cancelled."""
        with self.scope:
            await persist(f"watching peer '{self.id}'", self._watch)

    async def _watch(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stay_linked)
            while True:
                await self._look()
                pause = min(FIRST_PAUSE * 2.0 ** max(self._failures - 1, 0), LONGEST_PAUSE)
                if self.up:
                    pause = UNKNOWN_PAUSE if "" in self._identities.values() else LOOK_EVERY
                self._due = trio.current_time() + pause
                while (left := self._due - trio.current_time()) > 0:
                    self._rescheduled = trio.Event()
                    with trio.move_on_after(left):
                        await self._rescheduled.wait()

    def _look_within(self, seconds: float) -> None:
        self._due = min(self._due, trio.current_time() + seconds)
        self._rescheduled.set()

    async def _look(self) -> None:
        try:
            with trio.fail_after(LOOK_TIME):
                async with HttpCall(self.address, "GET", self._lists) as response:
                    content = await response.read(MAX_LISTING)
        except trio.TooSlowError:
            self._look_unanswered(f"it did not answer GET /v1/models within {LOOK_TIME:g} s")
        except UpstreamFailed as error:
            self._look_unanswered(error.why)
        except Busy:
            return  # this machine has no sockets left, which says nothing of the other one
        else:
            self._take(response, content)

    def _look_unanswered(self, why: str) -> None:
        was_down = self.up is False
        self._look_failed(why)
        for scope in self._attended if was_down else ():
            scope.cancel()

    def _look_failed(self, why: str) -> None:
        if self.up is False:
            self._failures += 1
        self.is_down(why)

    def _take(self, response: HttpAnswer, content: bytes) -> None:
        server = field(response.headers, b"server") or b""
        self._appliance = server.startswith(APPLIANCE)
        if response.status in (401, 403):
            self._look_failed(f"it answers {response.status} to GET /v1/models; apiKey has to be one of its keys")
            return
        if response.status >= 500:
            self._look_failed(f"it answers {response.status} to GET /v1/models")
            return
        self.is_up()
        if self._appliance:
            self._link_wanted.set()
        if response.status == 200:
            self.learn(content)

    def learn(self, content: bytes) -> None:
        """Take its list of models."""
        try:
            listed = read_listing(content)
            identities = read_identities(content) if self._lists == IDENTITIES else {}
        except UNREADABLE:
            if not self.config.models:
                self.error = "its /v1/models cannot be read; name its models in the configuration"
                self._changed()
            return
        if (listed, identities) != (self._listed, self._identities):
            self._listed, self._identities, self.revision = listed, identities, next(_revisions)
            if not self.config.models:
                self.models = tuple(listed)
            self._changed()

    # ---- the link ----------------------------------------------------------------------------------------------------

    async def _stay_linked(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._link_wanted = trio.Event()
            if not (self._appliance and self.up):
                await self._link_wanted.wait()
            was_linked = await self._link()
            if was_linked:
                pause = FIRST_PAUSE
                self._told = None
                self._changed()
                self._look_within(0)  # it may have died
            else:
                pause = min(2 * pause, REFUSED_PAUSE)
            await trio.sleep(pause)

    async def _link(self) -> bool:
        """Until the link ends; False if there was none."""
        try:
            async with open_upstream_websocket(self.address, LINK_PATH) as found:
                if isinstance(found, HttpAnswer):
                    return False
                await exchange_states(found, self._local.state, self._local.wait_changed, self._on_states)
                return True
        except (UpstreamFailed, Busy):
            return False

    def _on_states(self, models: Sequence[ModelState]) -> None:
        before, self._told = self._told, {model.id: model for model in models}
        if before is not None and before.keys() != self._told.keys():
            self._look_within(0)
        self._changed()


class Peers:
    """Made by `open_peers`. Everything except `wait_changed` is synchronous."""

    def __init__(self, nursery: trio.Nursery, local: LocalSide) -> None:
        self._nursery = nursery
        self._local = local
        self._configured: dict[str, RemotePeer] = {}
        self._members: dict[str, RemotePeer] = {}
        self._peers: dict[str, RemotePeer] = {}
        """All of them. A box of the pool hides a configured peer of the same id."""
        self.side = PoolSide()
        self._guests: dict[object, tuple[str, Sequence[ModelState]]] = {}
        self._news = Changed()

    def adopt(self, config: Config | None) -> None:
        """Follow a configuration; members and unchanged peers keep their tasks. Raises UsageError, and changes nothing
        then.
        """
        wanted = config.peers if config is not None else {}
        kept = {peer_id: peer for peer_id, peer in self._configured.items() if peer.config == wanted.get(peer_id)}
        configured = {id: kept.get(id) or self._make(id, peer, _address(id, peer)) for id, peer in wanted.items()}
        self._exchange(configured, self._members)

    def adopt_members(self, members: Mapping[str, Member], side: PoolSide | None = None) -> None:
        """Follow the pool's list of the other boxes, by id; configured peers and unchanged boxes keep their tasks."""
        self.side = side or PoolSide()
        kept = {id: peer for id, peer in self._members.items() if id in members and peer.address == members[id].address}
        made = {
            id: kept.get(id) or self._make(id, Peer(proxy=one.url), one.address, IDENTITIES)
            for id, one in members.items()
        }
        self._exchange(self._configured, made)

    def _make(self, peer_id: str, config: Peer, address: Address, lists: str = "/v1/models") -> RemotePeer:
        return RemotePeer(peer_id, address, config, self._local, self._news.wake, lists=lists)

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

    def own_states(self) -> Sequence[ModelState]:
        """Return what this program tells others of its own models."""
        return self._local.state()

    # ---- the boxes of the pool ---------------------------------------------------------------------------------------

    def absent(self, member_id: str, why: str) -> None:
        """The pool has lost sight of a box: it comes last until its task finds it well. Call it at the change."""
        if member_id in self._members:
            self._members[member_id].is_down(why)

    def present(self, member_id: str) -> None:
        """The pool sees a box again: one that counts as down is looked at now. Call it at the change."""
        if member_id in self._members:
            self._members[member_id].is_seen()

    def doubted(self, member_id: str) -> None:
        """A box may not be what is known of it: it is looked at in a second."""
        if member_id in self._members:
            self._members[member_id].is_doubted()

    def members(self) -> Collection[RemotePeer]:
        """Return the other boxes of the pool."""
        return self._members.values()

    def boxes(self) -> Mapping[str, tuple[str, ...]]:
        """Return the models of each."""
        return {id: peer.models for id, peer in self._members.items()}

    def boxes_in_reach(self) -> list[str]:
        """Return the ids of those that are not known to be down."""
        return [id for id, peer in self._members.items() if peer.up is not False]

    @property
    def me(self) -> str:
        """The name of this box; empty while it is in no pool."""
        return self.side.me

    @property
    def revision(self) -> int:
        """Changes with what the boxes list."""
        return max([peer.revision for peer in self._members.values()], default=0)

    def holders(self, model: str) -> list[Holder]:
        """Return the other boxes that have a model of this name, and what it is there."""
        return [Holder(id, peer.identity_of(model)) for id, peer in self._members.items() if model in peer.models]

    def boxes_with(self, model: str, identity: str) -> tuple[tuple[str, str], ...]:
        """Return the other boxes that have just this model, as pairs of their id and the name."""
        return tuple([(one.box, model) for one in self.holders(model) if identity and one.identity == identity])

    def groups(self, model: str) -> list[list[Holder]]:
        """Return those boxes by what they have under the name: one list of boxes for each model."""
        return groups_of(self.holders(model))

    def at_boxes(self, pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Return the pairs of peer id and model whose peers are boxes of the pool."""
        return tuple([pair for pair in pairs if pair[0] in self._members])

    def decides(self, boxes: Sequence[tuple[str, str]]) -> bool:
        """Return whether a model that is loaded here, and that these boxes have too, may be asked of one of them."""
        known = [(self._members[box], model) for box, model in boxes if box in self._members]
        return self.side.me in self.side.drained or any(box.up and box.state_of(model).loaded for box, model in known)

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

    def may_answer(self, candidates: Sequence[tuple[str, str]]) -> bool:
        """True unless every peer of these pairs is known to be down."""
        return any(peer_id in self._peers and self._peers[peer_id].up is not False for peer_id, _ in candidates)

    def address(self, peer_id: str) -> Address:
        """Return the peer's address. Raises PeerFailed when the configuration has no such peer any more."""
        return self._get(peer_id).address

    def using(self, peer_id: str) -> AbstractContextManager[None]:
        """Count one request at the peer for as long as the block runs. Raises PeerFailed as `address` does."""
        return self._get(peer_id).using()

    def attended(self, peer_id: str) -> AbstractContextManager[None]:
        """The same, and the block ends where the peer is given up: see `RemotePeer.attended`."""
        return self._get(peer_id).attended()

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
        """Return the states in the order of the configuration, the pool's boxes behind it."""
        return tuple(peer.status for peer in self._peers.values())

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return peer ids and their models: everything that `complete` depends on, and cheap."""
        return tuple([(peer.id, peer.models) for peer in self._peers.values()]) if self._peers else ()

    def loaded(self) -> list[tuple[str, str]]:
        """Return pairs of peer id and model, of the models that are loaded."""
        return [
            (peer.id, model) for peer in self._peers.values() for model in peer.models if peer.state_of(model).loaded
        ]

    def complete(self, config: Config) -> Config:
        """Return the configuration with the pool's boxes as peers, and with the models that each of both lists if the
        configuration names none; for resolving names.
        """
        wanted = {**config.peers, **{id: member.config for id, member in self._members.items()}}
        peers = {
            peer_id: msgspec.structs.replace(peer, models=list(self._peers[peer_id].models))
            if not peer.models and peer_id in self._peers
            else peer
            for peer_id, peer in wanted.items()
        }
        return msgspec.structs.replace(config, peers=peers)

    @contextmanager
    def guest(self, label: str) -> Generator[Callable[[Sequence[ModelState]], None]]:
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

    async def wait_changed(self) -> None:
        """Return after the next change of anything above."""
        await self._news.wait()

    def _get(self, peer_id: str) -> RemotePeer:
        try:
            return self._peers[peer_id]
        except KeyError:
            raise PeerFailed(peer_id, "it is not in the configuration any more") from None


def _address(peer_id: str, peer: Peer) -> Address:
    return address_of(peer.proxy, peer_id, api_key=peer.api_key, timeouts=peer.timeouts)


@asynccontextmanager
async def open_peers(
    config: Config | None, *, local_state: LocalState = tuple, wait_changed: WaitChanged = trio.sleep_forever
) -> AsyncGenerator[Peers]:
    """Own the tasks of ``config``'s peers, which get ``local_state`` after every change. Raises UsageError."""
    async with beside() as nursery:
        peers = Peers(nursery, LocalSide(local_state, wait_changed))
        peers.adopt(config)
        yield peers
