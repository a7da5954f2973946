"""``/api/engines``: the builds here with their standing, trials, and the choice among them.

No route installs an engine, or names a path. Choosing among those that are here and proven is off unless the server was
started with ``--admin``; then it is what the commands do, on the same files and under the same lock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct
from quart import Response

from appliance.errors import Conflict
from appliance.features.engines.choosing import named_seats, prefer, roll_back
from appliance.features.engines.core.choice import EngineWish
from appliance.features.engines.owner import Engines
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.table import Table, table
from appliance.fleet.status import ChildStatus
from appliance.http.control.answers import json_answer, parse_as, read_as, read_body
from appliance.http.control.routes import Routes
from appliance.http.route_facts import AdminDoor, RouteFacts
from appliance.store.shelf import alone

MAX_WAITING = 4  # requests to prove that are under way or wait for their turn; each takes a core for a while


class ProveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/engines/prove``: ids of seats or builds; none: all that nobody has tried."""

    seats: tuple[str, ...] = ()


class RollbackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/engines/rollback``."""

    backend: str | None = None


CHOICE = RouteFacts(takes=EngineWish, gives=Table, admin=AdminDoor("choosing an engine", "engines use"))
RETURN = RouteFacts(
    takes=RollbackRequest,
    gives=Table,
    admin=AdminDoor("returning to the build before an update", "engines rollback"),
)


def engine_routes(
    engines: Engines, running: Callable[[], Mapping[str, str]], settled: Callable[[], None], *, may_choose: bool
) -> Routes:
    """``running``: models by seat; ``settled`` is called when more is known; ``may_choose``: clients may choose."""
    routes, shelf, shows = Routes("engines"), Shelf(engines.folder), RouteFacts(gives=Table)
    waiting = 0

    async def shown() -> Response:
        return json_answer(await table(engines, running=running(), may_choose=may_choose))

    async def changed(change: Callable[[], Awaitable[object]]) -> Response:
        async with alone(shelf):
            await engines.refresh()
            await change()
        settled()
        return await shown()

    @routes.get("/api/engines", facts=shows)
    async def show_engines() -> Response:
        return await shown()

    @routes.post("/api/engines/probe", facts=shows)
    async def probe_engines() -> Response:
        """Look at the machine and at the installed builds again, and ask each for its devices."""
        await engines.probe()
        settled()
        return await shown()

    @routes.post("/api/engines/prove", facts=RouteFacts(takes=ProveRequest, gives=Table))
    async def prove_engines() -> Response:
        """Answers when it is done; each seat takes seconds."""
        nonlocal waiting
        asked = parse_as(await read_body() or b"{}", ProveRequest)
        if waiting >= MAX_WAITING:
            raise Conflict("engines are being proven already, and others wait for their turn; ask again later")
        waiting += 1
        try:
            if engines.look is None:
                await engines.probe()
            await engines.prove(named_seats(engines, asked.seats) if asked.seats else None)
        finally:
            waiting -= 1
        settled()
        return await shown()

    @routes.post("/api/engines/use", facts=CHOICE)
    async def use_engine() -> Response:
        """Prefer an engine that is proven here, or pin it; models move when they are idle."""
        wish = await read_as(EngineWish)
        return await changed(partial(prefer, engines, wish, only_proven=True))

    @routes.post("/api/engines/rollback", facts=RETURN)
    async def return_to_engine() -> Response:
        """Return to the build before the last update."""
        asked = parse_as(await read_body() or b"{}", RollbackRequest)
        return await changed(partial(roll_back, engines, asked.backend))

    return routes


def seats_in_use(statuses: Iterable[ChildStatus]) -> dict[str, str]:
    """Models that have a process, and the seat of each."""
    return {one.model: one.seat for one in statuses if one.seat is not None and one.pid is not None}
