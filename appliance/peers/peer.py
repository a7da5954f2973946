"""One other server: what is known of it, and the task that finds out."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec
import trio
from msgspec import Struct

from appliance.core.config.types import Peer
from appliance.errors import Busy, UpstreamFailed
from appliance.peers.link import LINK_PATH, LocalState, ModelState, WaitChanged, exchange_states, read_listing
from appliance.trio_parts import persist
from appliance.upstream.client import Exchange, Response, address_of
from appliance.upstream.websocket import open_upstream_websocket

LOOK_EVERY = 60.0
"""Seconds between two looks at a server that is well."""
LOOK_TIME = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until a server that is down is looked at again; doubled every time."""
REFUSED_PAUSE = 60.0
"""Seconds until a link is asked for again that the other side does not want."""
MAX_LISTING = 16 << 20
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


class LocalSide(Struct, frozen=True):
    """The report to the other side of a link."""

    state: LocalState
    wait_changed: WaitChanged


class RemotePeer:
    """Owned by `Peers`, which runs `run` as a task. Every change calls ``changed``."""

    def __init__(self, peer_id: str, config: Peer, local: LocalSide, changed: Callable[[], None]) -> None:
        self.id = peer_id
        self.config = config
        self.address = address_of(config.proxy, peer_id, api_key=config.api_key, timeouts=config.timeouts)
        self.up: bool | None = None
        self.error: str | None = None
        self.models = tuple(config.models)
        """Return the models of the file, or else those that the server lists."""
        self.scope = trio.CancelScope()
        """Cancelling it ends `run`."""
        self._local = local
        self._changed = changed
        self._busy = 0
        self._appliance = False
        self._listed: dict[str, ModelState] = {}
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

    @contextmanager
    def using(self) -> Generator[None]:
        self._busy += 1
        self._changed()
        try:
            yield
        finally:
            self._busy -= 1
            self._changed()

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
                self._due = trio.current_time() + (LOOK_EVERY if self.up else self._pause())
                while (left := self._due - trio.current_time()) > 0:
                    self._rescheduled = trio.Event()
                    with trio.move_on_after(left):
                        await self._rescheduled.wait()

    def _look_within(self, seconds: float) -> None:
        self._due = min(self._due, trio.current_time() + seconds)
        self._rescheduled.set()

    def _pause(self) -> float:
        return min(FIRST_PAUSE * 2.0 ** max(self._failures - 1, 0), LONGEST_PAUSE)

    async def _look(self) -> None:
        try:
            with trio.fail_after(LOOK_TIME):
                async with Exchange(self.address, "GET", "/v1/models") as response:
                    content = await response.read(MAX_LISTING)
        except trio.TooSlowError:
            self._look_failed(f"it did not answer GET /v1/models within {LOOK_TIME:g} s")
        except UpstreamFailed as error:
            self._look_failed(error.why)
        except Busy:
            return  # this machine has no sockets left, which says nothing of the other one
        else:
            self._take(response, content)

    def _look_failed(self, why: str) -> None:
        if self.up is False:
            self._failures += 1
        self.is_down(why)

    def _take(self, response: Response, content: bytes) -> None:
        server = next((value for name, value in response.headers if name.lower() == b"server"), b"")
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
            self._read(content)

    def _read(self, content: bytes) -> None:
        try:
            listed = read_listing(content)
        except (msgspec.MsgspecError, UnicodeError):
            if not self.config.models:
                self.error = "its /v1/models cannot be read; name its models in the configuration"
                self._changed()
            return
        if listed != self._listed:
            self._listed = listed
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
                if isinstance(found, Response):
                    return False
                await exchange_states(found, self._local.state, self._local.wait_changed, self._heard)
                return True
        except (UpstreamFailed, Busy):
            return False

    def _heard(self, models: Sequence[ModelState]) -> None:
        before, self._told = self._told, {model.id: model for model in models}
        if before is not None and before.keys() != self._told.keys():
            self._look_within(0)
        self._changed()
