"""Placements: for a model that has to be loaded somewhere, one box decides, and the others follow its decision.

The decisions of the lease are in `appliance.features.pool.core.lease`; here they are carried out on the bus.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio

from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusError, as_word
from appliance.features.pool.core.lease import (
    FOUNDED,
    Fences,
    HeldElsewhere,
    KnownStore,
    PlacementLease,
    PlacementRecord,
    PutKey,
    ReadKey,
    understood,
)
from appliance.platform.machine import here

BUS_TIME = 1.0  # Seconds that a request waits for the bus. Then it goes on without a lease, as where there is no bus.
LOOK_AGAIN = 0.2  # seconds between two looks at a record that another box holds: a request needs five, and no watch


class PlacementKeys(Protocol):
    """The part of `Bucket` that leases need."""

    async def get(self, key: str) -> BucketEntry | None: ...
    async def put(self, key: str, value: bytes, revision: int | None) -> int: ...


Decide = Callable[[int, str], Awaitable[str]]
"""Chooses a box, sends it an order of this epoch and holder (`Fences.admits`), and returns its name; empty: none."""


class PlacementLeases:
    """All leases of one program. Owned by the part of the box that uses the bus."""

    def __init__(
        self, box: str, incarnation: str, fences: Fences, clock: Callable[[], float] = here.with_sleep
    ) -> None:
        self._fences, self._clock = fences, clock
        self._store = KnownStore(f"{box}/{incarnation}")
        self._leases: dict[str, tuple[PlacementLease, trio.Lock]] = {}

    async def meet(self, keys: PlacementKeys) -> None:
        """Learn which store the bus has, when the bus has been reached. Raises BusError.

        A model without a record can be placed a term after that.
        """
        while True:
            entry = await keys.get(FOUNDED)
            step = self._store.on_founded(entry.value if entry is not None else None, self._clock())
            if step is None:
                return
            with suppress(BusConflict):
                await keys.put(step.key, step.value, step.revision)

    async def place(
        self, keys: PlacementKeys, model: str, decide: Decide, follows: Callable[[str], bool]
    ) -> str | None:
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

    async def _take(
        self, keys: PlacementKeys, lease: PlacementLease, follows: Callable[[str], bool]
    ) -> PlacementRecord | None:
        """Return a decision to follow, or None once the lease is held. Raises BusError."""
        while not lease.held(self._clock()):
            step = lease.attempt(self._clock())
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
            if isinstance(step, HeldElsewhere):
                await trio.sleep(LOOK_AGAIN)
        return None
