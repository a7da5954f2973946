"""``/api/peers`` shows the other servers. ``/api/pool/...``: this box is put into a pool or out of it, or changes it.

`edges.state_get` shows its state. A client that may do this can let in other machines, so it takes ``serve --admin`` or
the socket of the own home.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from quart import Response

from appliance.features.pool.core.shapes import CreatePool, DrainBox, JoinPool, LeavePool, RotatePool
from appliance.features.pool.peers import Peers
from appliance.features.pool.seat import PoolSeat
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import Routes
from appliance.http.route_facts import AdminDoor, RouteFacts

if TYPE_CHECKING:
    from appliance.features.pool.owner import BoxPool

DOOR = AdminDoor("changing the pool", "pool' on the server's machine", trusted=True)

T = TypeVar("T")


def pool_routes(peers: Peers, seat: PoolSeat) -> Routes:
    routes = Routes("pool")

    def change(path: str, takes: type[T], make: Callable[[BoxPool, T], Awaitable[object]]) -> None:
        async def changed() -> Response:
            return json_answer(await make(await seat.require(), await read_as(takes)))

        name, facts = path.rpartition("/")[2], RouteFacts(takes=takes, admin=DOOR)
        routes.add_url_rule(path, name, changed, methods=["POST"], facts=facts)

    change("/api/pool/create", CreatePool, lambda pool, asked: pool.create(asked))
    change("/api/pool/join", JoinPool, lambda pool, asked: pool.join(asked))
    change("/api/pool/leave", LeavePool, lambda pool, asked: pool.leave(asked.box))
    change("/api/pool/drain", DrainBox, lambda pool, asked: pool.drain(asked.box, drained=asked.drained))
    change("/api/pool/rotate", RotatePool, lambda pool, asked: pool.require().rotate(asked.without))

    @routes.post("/api/pool/invite", facts=RouteFacts(admin=DOOR))
    async def invite() -> Response:
        return json_answer((await seat.require()).invite())

    @routes.get("/api/peers")
    async def show_peers() -> Response:
        """The other servers: those asked from here, and the appliances that have linked themselves to this one."""
        guests = [{"address": address, "models": models} for address, models in peers.guests()]
        return json_answer({"peers": peers.snapshot(), "guests": guests})

    return routes
