"""``/api/peers`` shows the other servers. ``/api/pool/...``: this box is put into a pool or out of it, or changes it.

`edges.state_get` shows its state. A client that may do this can let in other machines, so it takes ``serve --admin`` or
the socket of the own home.
"""

from __future__ import annotations

from quart import Response

from appliance.features.pool.core.shapes import CreatePool, DrainBox, JoinPool, LeavePool, RotatePool
from appliance.features.pool.peers import Peers
from appliance.features.pool.seat import PoolSeat
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import Routes
from appliance.http.route_facts import AdminDoor, RouteFacts

DOOR = AdminDoor("changing the pool", "pool", trusted=True)


def pool_routes(peers: Peers, seat: PoolSeat) -> Routes:
    routes = Routes("pool")

    @routes.post("/api/pool/create", facts=RouteFacts(takes=CreatePool, admin=DOOR))
    async def create() -> Response:
        return json_answer(await (await seat.require()).create(await read_as(CreatePool)))

    @routes.post("/api/pool/join", facts=RouteFacts(takes=JoinPool, admin=DOOR))
    async def join() -> Response:
        return json_answer(await (await seat.require()).join(await read_as(JoinPool)))

    @routes.post("/api/pool/leave", facts=RouteFacts(takes=LeavePool, admin=DOOR))
    async def leave() -> Response:
        return json_answer(await (await seat.require()).leave((await read_as(LeavePool)).box))

    @routes.post("/api/pool/drain", facts=RouteFacts(takes=DrainBox, admin=DOOR))
    async def drain() -> Response:
        changed, asked = await seat.require(), await read_as(DrainBox)
        return json_answer(await changed.drain(asked.box, drained=asked.drained))

    @routes.post("/api/pool/rotate", facts=RouteFacts(takes=RotatePool, admin=DOOR))
    async def rotate() -> Response:
        return json_answer(await (await seat.require()).require().rotate((await read_as(RotatePool)).without))

    @routes.post("/api/pool/invite", facts=RouteFacts(admin=DOOR))
    async def invite() -> Response:
        return json_answer((await seat.require()).invite())

    @routes.get("/api/peers")
    async def show_peers() -> Response:
        """The other servers: those asked from here, and the appliances that have linked themselves to this one."""
        guests = [{"address": address, "models": models} for address, models in peers.guests()]
        return json_answer({"peers": peers.snapshot(), "guests": guests})

    return routes
