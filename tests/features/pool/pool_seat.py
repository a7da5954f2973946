"""The owner of a server's place in a pool."""

from __future__ import annotations

from http_harness import Appliance

from appliance.features.pool.feature import PoolParts
from appliance.features.pool.seat import PoolSeat


def seat_of(server: Appliance) -> PoolSeat:
    return next(part.seat for part in server.opened.parts if isinstance(part, PoolParts))
