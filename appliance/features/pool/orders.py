"""Placements: for a model that has to be loaded somewhere, one box decides, and tells the others over the bus.

The box that a client asked decides, while it has the model's lease, whose rules are in `core.lease`; others follow its
decision. A box carries an order out only if it knows no newer one, and remembers that on its disk first.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.errors import ApplianceError
from appliance.features.pool.bucket import Bucket
from appliance.features.pool.bus import Bus
from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusError, as_word
from appliance.features.pool.core.lease import (
    FOUNDED,
    Fences,
    Holder,
    KnownStore,
    PlacementLease,
    PlacementRecord,
    PutKey,
    ReadKey,
    can_be_placed,
    understood,
)
from appliance.features.pool.core.nats import BusMessage
from appliance.features.pool.core.placing import BoxChoice
from appliance.features.pool.core.roster import Count
from appliance.features.pool.hands import OwnHands
from appliance.platform.machine import here

BUS_TIME = 1.0  # Seconds that a request waits for the bus. Then it goes on without a lease, as where there is no bus.
LOOK_AGAIN = 0.2  # seconds between two looks at a record that another box holds: a request needs five, and no watch
ORDER_TIME = 1.0  # Seconds for a box to accept an order. It answers before it carries the order out.
MOST_ORDERS = 64  # Orders that are looked at together. One more gets no answer, as from a box that is too slow.

log = logging.getLogger(__name__)


class PlacementOrder(Struct, frozen=True, kw_only=True):
    """One order, as JSON on the bus. ``evict``: idle models may go for it."""

    op: Literal["load", "fetch"]
    model: str
    epoch: Count
    holder: Holder
    evict: bool = False


class OrderAnswer(Struct, frozen=True, kw_only=True):
    """The answer of the box that got the order. ``why``: the reason why it is not carried out; empty: it is."""

    why: str = ""


class PlacementKeys(Protocol):
    """The part of `Bucket` that leases need."""

    async def get(self, key: str) -> BucketEntry | None: ...
    async def put(self, key: str, value: bytes, revision: int | None) -> int: ...


IsUp = Callable[[str], bool]  # whether a box may be there
Decide = Callable[[int, str], Awaitable[str]]  # orders of a box, with this epoch and holder; returns its name, or ""


class PlacementLeases:
    """All leases of one program."""

    def __init__(self, holder: Holder, fences: Fences, clock: Callable[[], float] = here.with_sleep) -> None:
        self._fences, self._clock = fences, clock
        self._store = KnownStore(holder)
        self._leases: dict[str, tuple[PlacementLease, trio.Lock]] = {}

    async def meet(self, keys: PlacementKeys) -> None:
        """Learn which store the bus has; a new model can be placed a term after that. Raises BusError."""
        while True:
            entry = await keys.get(FOUNDED)
            step = self._store.on_founded(entry.value if entry is not None else None, self._clock())
            if step is None:
                return
            with suppress(BusConflict):
                await keys.put(step.key, step.value, step.revision)

    async def place(self, keys: PlacementKeys, model: str, decide: Decide, follows: IsUp) -> str | None:
        """Return the box that has the model, or soon will: by a fresh decision that ``follows`` accepts, or ``decide``.

        ``decide`` is cancelled at the end of the term, and may raise. None: nobody has decided, or it is unknown. Then
        the request goes on without an order. Requests of this box for one model wait for each other, since the second
        one can follow the first.
        """
        if model not in self._leases:
            lease = PlacementLease(model, f"place.{as_word(model)}", self._fences, self._store)
            self._leases[model] = lease, trio.Lock()
        lease, one_at_a_time = self._leases[model]
        async with one_at_a_time:
            record: PlacementRecord | None = None
            with trio.move_on_after(BUS_TIME), suppress(BusError):
                record = await self._take(keys, lease, follows)
            if record is not None:
                return record.box
            left, box = lease.left(self._clock()), ""
            if not left:
                return None
            try:
                with trio.move_on_after(left):
                    box = await decide(lease.epoch, self._store.me)
            finally:
                with trio.move_on_after(BUS_TIME, shield=True), suppress(BusError):
                    if (step := lease.release(box, time.time(), self._clock())) is not None:
                        await keys.put(step.key, step.value, step.revision)
            return box or None

    async def _take(self, keys: PlacementKeys, lease: PlacementLease, follows: IsUp) -> PlacementRecord | None:
        """Return a decision to follow, or None once the lease is held. Raises BusError."""
        while not lease.held(self._clock()):
            step = lease.attempt()
            with suppress(BusConflict):
                while isinstance(step, ReadKey | PutKey):
                    if isinstance(step, PutKey):
                        step = lease.on_stored(step.key, await keys.put(step.key, step.value, step.revision))
                        continue
                    entry = await keys.get(step.key)
                    value, revision = (entry.value, entry.revision) if entry is not None else (None, 0)
                    if step.key == lease.key and value is not None:
                        record = understood(value)
                        if record.fresh(time.time()) and follows(record.box):
                            return record
                    step = lease.on_entry(step.key, value, revision, self._clock())
            if step == "held":
                await trio.sleep(LOOK_AGAIN)
        return None


class BoxOrders:
    """Gives orders and takes them, for one box, while there is a bus. `Orders` for the way of a request."""

    def __init__(
        self, pool: str, me: str, fences: Fences, hands: OwnHands, remember: Callable[[], Awaitable[None]]
    ) -> None:
        """``remember`` writes the fences to the disk. Raises StoreFailed."""
        self._subject = f"pool.{pool}.order"
        self._me, self._fences, self._hands, self._remember = me, fences, hands, remember
        self._leases = PlacementLeases(f"{me}/{secrets.token_hex(8)}", fences)
        self._bus: Bus | None = None
        self._bucket: Bucket | None = None
        self._is_up: IsUp = lambda _: False
        self._looked_at = 0

    async def run(self, bus: Bus, bucket: Bucket, is_up: IsUp) -> None:
        """Take orders for as long as there is this bus. Ends when cancelled."""
        async with trio.open_nursery() as nursery:

            def on_order(message: BusMessage) -> None:
                # Without a reply nobody waits for the answer, so nobody of this program has sent it.
                if message.reply and self._looked_at < MOST_ORDERS:
                    self._looked_at += 1
                    nursery.start_soon(self._answer, bus, message)

            with bus.subscription(f"{self._subject}.{as_word(self._me)}", on_order):
                self._bus, self._bucket, self._is_up = bus, bucket, is_up
                try:
                    while True:
                        with suppress(BusError):
                            await self._leases.meet(bucket)
                            await trio.sleep_forever()
                        await trio.sleep(1.0)
                finally:
                    self._bus = self._bucket = None

    async def place(self, model_id: str, decide: Callable[[], BoxChoice | None]) -> str | None:
        """See `peers.Orders`."""
        bus, bucket = self._bus, self._bucket
        if bus is None or bucket is None or not bus.connected or not can_be_placed(model_id):
            return None

        async def order(epoch: int, holder: str) -> str:
            if (choice := decide()) is None or choice.need == "nothing":
                return choice.box if choice is not None else ""
            wanted = PlacementOrder(
                op="fetch" if choice.need == "fetch" else "load",
                model=model_id,
                epoch=epoch,
                holder=holder,
                evict=choice.need != "load",
            )
            if choice.box == self._me:
                why = await self._obey(wanted)
            else:
                subject = f"{self._subject}.{as_word(choice.box)}"
                sent = await bus.request(subject, msgspec.json.encode(wanted), timeout=ORDER_TIME)
                answer = decoded(OrderAnswer, sent.data)
                why = answer.why if answer is not None else "its answer cannot be read"
            if why:
                log.info("box '%s' does not load '%s': %s", choice.box, model_id, why)
            return "" if why else choice.box

        try:
            return await self._leases.place(bucket, model_id, order, self._is_up)
        except BusError as error:
            log.info("no order for '%s': %s", model_id, error)
            return None

    async def _answer(self, bus: Bus, message: BusMessage) -> None:
        try:
            order = decoded(PlacementOrder, message.data)
            why = "the order cannot be read" if order is None else await self._obey(order)
        finally:
            self._looked_at -= 1
        bus.publish(message.reply, msgspec.json.encode(OrderAnswer(why=why)))

    async def _obey(self, order: PlacementOrder) -> str:
        """Begin what is ordered, unless a newer order is known. Return the reason why not; empty: it has begun."""
        try:
            self._hands.require(order.model)
            if not self._fences.admits(order.model, order.epoch, order.holder):
                return f"epoch {order.epoch} is not the newest; {self._fences.highest(order.model)} is known"
            await self._remember()
            if order.op == "fetch":
                await self._hands.fetch(order.model)
            else:
                await self._hands.load(order.model, evict=order.evict)
        except ApplianceError as error:
            return str(error)
        return ""
