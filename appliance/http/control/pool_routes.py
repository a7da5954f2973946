"""``/api/pool/...``: this box is put into a pool or out of it, and the pool is changed. `EdgeRoutes` shows its state.

A client that may do this can let in other machines, so it takes ``serve --admin`` or the socket of the own home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Response

from appliance.core.pool.shapes import CreatePool, DrainBox, JoinPool, LeavePool, RotatePool
from appliance.errors import AdminOff
from appliance.http.control.answers import is_trusted, json_answer, read_as
from appliance.http.control.routes import RouteFacts, Routes
from appliance.pool.seat import PoolSeat

if TYPE_CHECKING:
    from appliance.pool.owner import BoxPool


class PoolRoutes:
    """Every method is one route. ``admin``: they are on for every client."""

    def __init__(self, seat: PoolSeat, *, admin: bool) -> None:
        self._seat = seat
        self._admin = admin

    async def create(self) -> Response:
        return json_answer(await (await self._owner()).create(await read_as(CreatePool)))

    async def invite(self) -> Response:
        return json_answer((await self._owner()).invite())

    async def join(self) -> Response:
        return json_answer(await (await self._owner()).join(await read_as(JoinPool)))

    async def leave(self) -> Response:
        return json_answer(await (await self._owner()).leave((await read_as(LeavePool)).box))

    async def drain(self) -> Response:
        owner, asked = await self._owner(), await read_as(DrainBox)
        return json_answer(await owner.drain(asked.box, drained=asked.drained))

    async def rotate(self) -> Response:
        return json_answer(await (await self._owner()).require().rotate((await read_as(RotatePool)).without))

    async def _owner(self) -> BoxPool:
        """Raises AdminOff and Forbidden."""
        if not (self._admin or is_trusted()):
            raise AdminOff("changing the pool", "pool' on the server's machine")
        return await self._seat.require()


def add_pool_routes(app: Routes, routes: PoolRoutes) -> None:
    for answer, takes in (
        (routes.create, CreatePool),
        (routes.invite, None),
        (routes.join, JoinPool),
        (routes.leave, LeavePool),
        (routes.drain, DrainBox),
        (routes.rotate, RotatePool),
    ):
        verb, facts = answer.__name__, RouteFacts(takes=takes)
        app.add_url_rule(f"/api/pool/{verb}", f"pool {verb}", answer, methods=["POST"], facts=facts)
