"""One other server: its health, its models, and the live link with it, in a task of its own."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import trio
from msgspec import Struct

from appliance.core.config.types import Peer
from appliance.core.headers import field
from appliance.core.lenient_json import UNREADABLE
from appliance.errors import Busy, UpstreamFailed
from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import IDENTITIES, LINK_PATH, Channel, Heard, read_listing
from appliance.trio_parts import Changed, persist
from appliance.upstream.client import Address, HttpAnswer, HttpCall
from appliance.upstream.websocket import open_upstream_websocket

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until a server that is down is looked at again; doubled every time
LOOK_EVERY = 60.0  # seconds between two looks at a server that is well
LOOK_TIME = 10.0
REFUSED_PAUSE = 60.0  # seconds until a link is asked for again that the other side does not want
MAX_LISTING = 16 << 20
UNKNOWN_PAUSE = 2.0  # seconds until a box is looked at again that is still working out what its models are
_revisions = count(1)
APPLIANCE = b"llama-appliance"  # its name in a Server header


class PeerStatus(Struct, frozen=True, kw_only=True):
    """The state of one peer at one moment."""

    id: str
    url: str
    up: bool | None  # None: nobody has looked yet
    error: str | None
    appliance: bool
    linked: bool
    busy: int  # requests of this program that it works on
    models: tuple[ModelState, ...]


class RemotePeer:
    """Owned by `Peers`, which runs it. Changes call ``changed``; ``tell`` is `exchange_states` with our own models."""

    def __init__(
        self,
        peer_id: str,
        address: Address,
        config: Peer,
        tell: Callable[[Channel, Heard], Awaitable[object]],
        changed: Callable[[], None],
        *,
        lists: str = "/v1/models",
    ) -> None:
        self.id, self.config, self.address = peer_id, config, address
        self.up: bool | None = None
        self.error: str | None = None
        self.models = tuple(config.models)  # those of the file, or else those that the server lists
        self.scope = trio.CancelScope()  # cancelling it ends `run`
        self.revision = 0  # a number that no other listing has: it changes with the listing
        self._lists, self._tell, self._changed = lists, tell, changed
        self._busy = 0
        self._attended: set[trio.CancelScope] = set()
        self._appliance = False
        self._listed: dict[str, ModelState] = {}
        self.identities: dict[str, str | None] = {}  # what its models are, see `read_listing`
        self._told: dict[str, ModelState] | None = None
        self._failures = 0
        self._due = -math.inf
        self._rescheduled, self._link_wanted = Changed(), Changed()

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
            self.look_within(FIRST_PAUSE)

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
                    pause = UNKNOWN_PAUSE if "" in self.identities.values() else LOOK_EVERY
                self._due = trio.current_time() + pause
                while (left := self._due - trio.current_time()) > 0:
                    with trio.move_on_after(left):
                        await self._rescheduled.wait()

    def look_within(self, seconds: float) -> None:
        self._due = min(self._due, trio.current_time() + seconds)
        self._rescheduled.wake()

    async def _look(self) -> None:
        try:
            with trio.fail_after(LOOK_TIME):
                async with HttpCall(self.address, "GET", self._lists) as response:
                    content = await response.read(MAX_LISTING)
        except trio.TooSlowError:
            self._look_failed(f"it did not answer GET /v1/models within {LOOK_TIME:g} s", unanswered=True)
        except UpstreamFailed as error:
            self._look_failed(error.why, unanswered=True)
        except Busy:
            return  # this machine has no sockets left, which says nothing of the other one
        else:
            self._take(response, content)

    def _look_failed(self, why: str, *, unanswered: bool = False) -> None:
        was_down = self.up is False
        self._failures += was_down
        self.is_down(why)
        for scope in self._attended if was_down and unanswered else ():
            scope.cancel()

    def _take(self, response: HttpAnswer, content: bytes) -> None:
        self._appliance = (field(response.headers, b"server") or b"").startswith(APPLIANCE)
        if response.status in (401, 403) or response.status >= 500:
            fix = "; apiKey has to be one of its keys" if response.status < 500 else ""
            self._look_failed(f"it answers {response.status} to GET /v1/models{fix}")
            return
        self.is_up()
        if self._appliance:
            self._link_wanted.wake()
        if response.status == 200:
            self.learn(content)

    def learn(self, content: bytes) -> None:
        try:
            listed, identities = read_listing(content)
        except UNREADABLE:
            if not self.config.models:
                self.error = "its /v1/models cannot be read; name its models in the configuration"
                self._changed()
            return
        if self._lists != IDENTITIES:
            identities = {}
        if (listed, identities) != (self._listed, self.identities):
            self._listed, self.identities, self.revision = listed, identities, next(_revisions)
            if not self.config.models:
                self.models = tuple(listed)
            self._changed()

    async def _stay_linked(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if not (self._appliance and self.up):
                await self._link_wanted.wait()
            if await self._link():
                pause = FIRST_PAUSE
                self._told = None
                self._changed()
                self.look_within(0)  # it may have died
            else:
                pause = min(2 * pause, REFUSED_PAUSE)
            await trio.sleep(pause)

    async def _link(self) -> bool:
        """Until the link ends; False if there was none."""
        with suppress(UpstreamFailed, Busy):
            async with open_upstream_websocket(self.address, LINK_PATH) as found:
                if not isinstance(found, HttpAnswer):
                    await self._tell(found, self._on_states)
                    return True
        return False

    def _on_states(self, models: Sequence[ModelState]) -> None:
        before, self._told = self._told, {model.id: model for model in models}
        if before is not None and before.keys() != self._told.keys():
            self.look_within(0)
        self._changed()
