"""This box's part in the bus of its pool: its server, its client, the roster's agreement, and presence.

The bus agrees, and remembers nothing that the boxes do not know themselves: its store is empty after every change of
its voters. Each box then puts its roster there, and the newest one stays.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, Never

import msgspec
import trio

from appliance import __version__
from appliance.core.findings import Trouble
from appliance.core.lenient_json import decoded
from appliance.errors import BoxFailed, StoreFailed
from appliance.features.pool.bucket import Bucket
from appliance.features.pool.bus import Bus, open_bus
from appliance.features.pool.bus_server import BusProcess, open_bus_server
from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusError
from appliance.features.pool.core.bus_config import BusServing
from appliance.features.pool.core.bus_words import BusAccess, external_access
from appliance.features.pool.core.members import BEAT, GONE, Beat, Presence
from appliance.features.pool.core.nats import BusMessage
from appliance.features.pool.core.roster import CLIENTS, ROUTES, BusPlan, Roster, bus_plan, newer, refusal
from appliance.features.pool.orders import BoxOrders
from appliance.features.pool.peers import Peers
from appliance.features.pool.pool_file import PoolHere, certificate_files
from appliance.http.kernel import Kernel
from appliance.platform.machine import here
from appliance.trio_parts import Changed, wait_any

BUS = "the bus"  # the bus's name in errors
ROSTER_KEY = "roster"
AGREE_TIME = 20.0  # Seconds for one change of the roster. An election of the bus takes up to 11 s.
LOOK_AGAIN = 0.2  # seconds until the roster is read again, after a put that was overtaken or not answered
AGAIN = 1.0  # seconds between two tries to have the bucket and the own roster in it
SURE = 5.0  # seconds between two looks while the own roster is there; a box that has a newer one tells that at once

log = logging.getLogger(__name__)


BusPart = tuple[BusPlan, bytes, tuple[str, ...]]
"""This box's part, the secret, and its addresses, which the certificate of its server names: others look there."""


class OnBus:
    """Owned by one `Membership`, which runs it."""

    def __init__(self, pool: PoolHere, kernel: Kernel, peers: Peers, folder: Path) -> None:
        """``folder`` is for the files of the server alone."""
        self.up: Mapping[str, bool | None] = {}  # whether each box is there; None: unknown, so the links alone say it
        self._pool, self._kernel, self._peers, self._folder = pool, kernel, peers, folder
        self._beats = f"pool.{pool.roster.pool}.beat"  # one NATS may serve several pools
        self._incarnation = secrets.token_hex(8)
        self._sequence = 0
        self._stopping = False
        self._presence = Presence(pool.me)
        self._server: BusProcess | None = None
        self.bus: Bus | None = None  # the client, while the pool has a bus
        self._bucket: Bucket | None = None
        self._published = False
        self._news = Changed()

    @property
    def kind(self) -> Literal["none", "standalone", "voters", "external"]:
        return self._part()[0].kind

    @property
    def state(self) -> Literal["none", "connected", "no-quorum", "lost"]:
        """The state of the client, in the words of ``GET /api/pool``."""
        return self.bus.state.state if self.bus is not None else "none"

    @property
    def follows(self) -> bool:
        """True while the bus tells every change of the roster."""
        return self._published and self.state == "connected"

    @property
    def cut_off(self) -> bool:
        """True while this box receives nothing from the bus that it needs, or signs of life of less than half the pool.

        The own server of a box that was cut off still answers, and says no to a put only.
        """
        if self.bus is None:
            return False
        alone = 2 * sum(is_up is True for is_up in self.up.values()) < len(self.up)
        return alone or self.state != "connected" or self._presence.cut_off(here.with_sleep())

    def problems(self) -> list[Trouble]:
        """Return what a person has to know of the server and the client."""
        states = (self._server.state if self._server is not None else None, self.bus.state if self.bus else None)
        return [each.problem for each in states if each is not None and each.problem is not None]

    def heard(self, box: str) -> tuple[Beat, float | None]:
        """Return a box's last beat, the present one of this box, and its age in seconds; None: none has come."""
        found = self._presence.heard.get(box)
        beat = found.beat if found is not None else Beat(box=box, incarnation="", sequence=0)
        age = here.with_sleep() - found.at if found is not None else None
        return self._own_beat() if box == self._pool.me else beat, age

    def speeds(self) -> dict[str, float]:
        return {box: last.beat.speed for box, last in self._presence.heard.items() if last.beat.speed}

    async def agree(self, wanted: Roster) -> Roster:
        """Make one roster the next one for all boxes: return ``wanted``, or the one that came first. Raises BoxFailed.

        That is compare-and-set of one key. A lost answer is unknown, so the key is read again.
        """
        why = "there is no connection to it"
        with trio.move_on_after(AGREE_TIME):
            while self.kind != "none":
                if (bucket := self._bucket) is not None:  # another one after a change that moved the bus's servers
                    try:
                        entry = await bucket.get(ROSTER_KEY)
                        found = self._roster_in(entry)
                        if found is not None and found.generation >= wanted.generation:
                            return found
                        await bucket.put(ROSTER_KEY, msgspec.json.encode(wanted), entry.revision if entry else 0)
                        return wanted
                    except BusError as error:
                        why = str(error)
                await trio.sleep(LOOK_AGAIN)
        raise BoxFailed(
            BUS,
            f"{why}; nobody can change the pool while more than half of the boxes that serve the bus are away, and the "
            "last change may have been made anyway: 'llama-appliance pool ls' shows it",
        )

    def stop(self) -> None:
        """Tell the others at once that this box is about to end: they need not find it out."""
        self._stopping = True
        if self.bus is not None:
            self._beat(self.bus)

    async def run(self, orders: BoxOrders) -> Never:
        """Have the part that the roster gives this box, and let ``orders`` come and go, until cancelled."""
        async with open_bus_server(self._kernel.owners.fleet.children, self._folder) as self._server:
            while True:
                part = self._part()
                self._server.serve(self._serving(part[0]))
                try:
                    await wait_any(partial(self._be_client, part[0], orders), partial(self._wait_other, part))
                finally:
                    self.bus, self._bucket, self._published, self.up = None, None, False, {}

    async def _wait_other(self, part: BusPart) -> None:
        while self._part() == part:
            await self._pool.changed.wait()

    def _part(self) -> BusPart:
        kept, own = self._pool.kept, self._pool.own
        return bus_plan(kept.roster, kept.me), kept.secret, own.addresses if own is not None else ()

    async def _be_client(self, plan: BusPlan, orders: BoxOrders) -> None:
        if plan.kind == "none":
            await trio.sleep_forever()
        me, keys = self._pool.me, self._pool.keys
        access = BusAccess(places=plan.servers, client=me, nkey=keys.bus_user, seed=keys.bus_seed)
        if plan.kind == "external":
            access = external_access(plan.url, me)
        async with open_bus(access, await self._tls(access)) as bus:
            self.bus, self._bucket = bus, Bucket(bus, f"pool_{self._pool.roster.pool}")
            await wait_any(
                partial(self._keep_roster, bus, self._bucket, len(plan.voters) or 1),
                partial(self._be_present, bus),
                partial(orders.run, bus, self._bucket, lambda box: self.up.get(box) is not False),
            )

    async def _keep_roster(self, bus: Bus, bucket: Bucket, replicas: int) -> Never:
        """Have the bucket, and in it the newest roster. Where the store was lost, that is one of the boxes' own."""
        while True:
            self._published = False
            try:
                await bucket.create(replicas)
                self._published = await self._publish(bus, bucket)
            except BusError:
                pass  # the state of the bus tells
            except StoreFailed as error:
                log.warning("a change of the pool is lost if this program ends now: %s", error)
            with trio.move_on_after(SURE if self._published else AGAIN):
                await wait_any(self._pool.changed.wait, self._news.wait, bus.news.wait)

    async def _publish(self, bus: Bus, bucket: Bucket) -> bool:
        """Put the own roster there, or take the one that is. True: both are the same. Raises BusError.

        Where a put has failed, the same roster is put again: only a put shows that the bus accepts changes again.
        """
        entry, own = await bucket.get(ROSTER_KEY), self._pool.roster
        found = self._roster_in(entry)
        if found == own and bus.state.state != "no-quorum":
            return True
        if found is None or newer(found, own) == own:
            with suppress(BusConflict):
                await bucket.put(ROSTER_KEY, msgspec.json.encode(own), entry.revision if entry is not None else 0)
        else:
            await self._pool.learn(found)
        return False

    async def _be_present(self, bus: Bus) -> Never:
        """Send a beat every second, and at once after a change: it tells the others that there is a newer roster."""
        with bus.subscription(f"{self._beats}.*", self._on_beat):
            while True:
                self._beat(bus)
                with trio.move_on_after(BEAT):
                    await self._pool.changed.wait()

    def _own_beat(self) -> Beat:
        pool, edge = self._pool, self._kernel.edge
        return Beat(
            box=pool.me,
            incarnation=self._incarnation,
            sequence=self._sequence,
            version=__version__,
            generation=pool.roster.generation,
            drained=pool.own is not None and pool.own.drained,
            speed=self._kernel.owners.engines.speed,
            listen=edge.url,
            keyless=not edge.guard.asks_for_key,
            stopping=self._stopping,
        )

    def _beat(self, bus: Bus) -> None:
        self._sequence += 1
        bus.publish(f"{self._beats}.{self._pool.me}", msgspec.json.encode(self._own_beat()))
        names = [box.name for box in self._pool.roster.boxes]
        before, self.up = self.up, self._presence.boxes(names, here.with_sleep())
        for name, is_up in self.up.items():
            if is_up is not before.get(name):
                self._peers.seen(name, is_up, f"it has sent no sign of life for {GONE:g} s")

    def _on_beat(self, message: BusMessage) -> None:
        beat = decoded(Beat, message.data)
        if beat is None or message.subject != f"{self._beats}.{beat.box}":
            return
        roster = self._pool.roster
        is_new = roster.box(beat.box) is None or self._presence.on_beat(beat, here.with_sleep())
        if is_new and beat.generation > roster.generation:
            self._news.wake()

    def _serving(self, plan: BusPlan) -> BusServing | None:
        own = self._pool.own
        if not plan.serves or own is None:
            return None
        return BusServing(
            name=own.name,
            group="-".join(plan.voters),
            port=own.port + CLIENTS,
            routes_port=own.port + ROUTES if plan.kind == "voters" else 0,
            routes=plan.routes,
            files=self._pool.own_certificate(),
            keys=self._pool.keys,
        )

    async def _tls(self, access: BusAccess) -> ssl.SSLContext | None:
        """The TLS of a client that shows this box's certificate, and believes its authority alone."""
        if access.tls != "first":
            return None
        own = self._pool.own_certificate()
        context = ssl.create_default_context(cadata=own.ca)
        while True:
            try:
                with certificate_files(own) as files:
                    context.load_cert_chain(*files)
                return context
            except StoreFailed as error:
                log.warning("this box cannot use the bus yet: %s", error)
                await trio.sleep(AGAIN)

    def _roster_in(self, entry: BucketEntry | None) -> Roster | None:
        """Return the roster there, if it can be one of this pool."""
        found = decoded(Roster, entry.value) if entry is not None else None
        return None if found is None or refusal(self._pool.roster, found, time.time()) else found
