"""Orders between boxes: which box loads a model that a request asked for, told over the bus and carried out there.

The box that a client asked decides, while it has the model's lease (`core.lease`). A box carries an
order out only if it knows no newer one, and remembers that on its disk first.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import msgspec
import trio
from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.errors import ApplianceError
from appliance.features.pool.bucket import Bucket
from appliance.features.pool.bus import Bus
from appliance.features.pool.core.buckets import BusError, as_word
from appliance.features.pool.core.lease import Fences, Holder, can_be_placed
from appliance.features.pool.core.nats import BusMessage
from appliance.features.pool.core.placing import BoxChoice, Need
from appliance.features.pool.core.roster import Count
from appliance.features.pool.hands import OwnHands
from appliance.features.pool.leases import PlacementLeases

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


class BoxOrders:
    """Gives orders and takes them, for one box, while there is a bus. `Orders` for the way of a request."""

    def __init__(
        self, pool: str, me: str, fences: Fences, hands: OwnHands, remember: Callable[[], Awaitable[None]]
    ) -> None:
        """``remember`` writes the fences to the disk. Raises StoreFailed."""
        self._subject = f"pool.{pool}.order"
        self._me = me
        self._fences = fences
        self._hands = hands
        self._remember = remember
        self._leases = PlacementLeases(me, secrets.token_hex(8), fences)
        self._bus: Bus | None = None
        self._bucket: Bucket | None = None
        self._is_up: Callable[[str], bool] = lambda _: False
        self._looked_at = 0

    async def run(self, bus: Bus, bucket: Bucket, is_up: Callable[[str], bool]) -> None:
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
        """See `appliance.features.pool.peers.Orders`."""
        bus, bucket = self._bus, self._bucket
        if bus is None or bucket is None or not bus.connected or not can_be_placed(model_id):
            return None

        async def order(epoch: int, holder: str) -> str:
            if (choice := decide()) is None or choice.need is Need.NOTHING:
                return choice.box if choice is not None else ""
            wanted = PlacementOrder(
                op="fetch" if choice.need is Need.FETCH else "load",
                model=model_id,
                epoch=epoch,
                holder=holder,
                evict=choice.need is not Need.LOAD,
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
