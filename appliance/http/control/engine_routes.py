"""``/api/engines``: the builds here with their standing, trials, and the choice among them.

No route installs an engine, or names a path. Choosing among those that are here and proven is off unless the server was
started with ``--admin``; then it is what the commands do, on the same files and under the same lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from quart import Response

from appliance.core.engines.choice import EngineWish, Seat
from appliance.engines.choosing import prefer, roll_back
from appliance.engines.owner import Engines
from appliance.engines.shelf import Shelf
from appliance.engines.table import Table, table
from appliance.errors import AdminOff, Conflict, NotFound
from appliance.fleet.status import ChildStatus
from appliance.http.control.answers import json_answer, parse_as, read_as, read_body
from appliance.http.control.routes import RouteFacts, Routes
from appliance.store.shelf import alone

MAX_WAITING = 4
"""Requests to prove that are under way or wait for their turn; each takes a core for a while."""


class ProveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/engines/prove``: ids of seats or builds; none: all that nobody has tried."""

    seats: tuple[str, ...] = ()


class RollbackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/engines/rollback``."""

    backend: str | None = None


class EngineRoutes:
    """Every method is one route. ``running``: models by seat; ``settled`` is called when more is known.

    ``may_choose``: the server lets clients choose.
    """

    def __init__(
        self,
        engines: Engines,
        running: Callable[[], Mapping[str, str]],
        settled: Callable[[], None],
        *,
        may_choose: bool,
    ) -> None:
        self._settled = settled
        self._engines = engines
        self._running = running
        self._may_choose = may_choose
        self._shelf = Shelf(engines.folder)
        self._waiting = 0

    async def show(self) -> Response:
        return json_answer(await self._table())

    async def probe(self) -> Response:
        """Look at the machine and at the installed builds again, and ask each for its devices."""
        await self._engines.probe()
        self._settled()
        return json_answer(await self._table())

    async def prove(self) -> Response:
        """Answers when it is done; each seat takes seconds."""
        asked = parse_as(await read_body() or b"{}", ProveRequest)
        if self._waiting >= MAX_WAITING:
            raise Conflict("engines are being proven already, and others wait for their turn; ask again later")
        self._waiting += 1
        try:
            if self._engines.look is None:
                await self._engines.probe()
            await self._engines.prove(named_seats(self._engines, asked.seats) if asked.seats else None)
        finally:
            self._waiting -= 1
        self._settled()
        return json_answer(await self._table())

    async def use(self) -> Response:
        """Prefer an engine that is proven here, or pin it; models move when they are idle."""
        if not self._may_choose:
            raise AdminOff("choosing an engine", "engines use")
        wish = await read_as(EngineWish)
        async with alone(self._shelf):
            await self._engines.refresh()
            await prefer(self._shelf, self._engines, wish, only_proven=True)
        self._settled()
        return json_answer(await self._table())

    async def roll_back(self) -> Response:
        """Return to the build before the last update."""
        if not self._may_choose:
            raise AdminOff("returning to the build before an update", "engines rollback")
        asked = parse_as(await read_body() or b"{}", RollbackRequest)
        async with alone(self._shelf):
            await self._engines.refresh()
            await roll_back(self._shelf, self._engines, asked.backend)
        self._settled()
        return json_answer(await self._table())

    async def _table(self) -> Table:
        engines = self._engines
        await engines.sync()  # another program may have chosen, or be at an update
        from appliance.engines.installing import versions  # with archives, which few requests need

        return table(
            engines.engines,
            engines.ranked(),
            engines.state,
            versions(),
            running=self._running(),
            now=time.time(),
            trying=engines.trying,
            may_choose=self._may_choose,
        )


def named_seats(engines: Engines, names: tuple[str, ...]) -> list[Seat]:
    """The seats with these ids, or of builds with them. Raises NotFound."""
    found: dict[str, Seat] = {}
    for name in names:
        named = {seat.id: seat for seat in engines.seats if name in (seat.id, seat.build)}
        if not named:
            known = ", ".join(seat.id for seat in engines.seats) or "none"
            raise NotFound(f"there is no engine '{name}' here; there is {known}")
        found |= named
    return list(found.values())


def seats_in_use(statuses: Iterable[ChildStatus]) -> dict[str, str]:
    """Models that have a process, and the seat of each."""
    return {one.model: one.seat for one in statuses if one.seat is not None and one.pid is not None}


def add_engine_routes(app: Routes, routes: EngineRoutes) -> None:
    app.add_url_rule("/api/engines", "engines", routes.show, facts=RouteFacts(gives=Table))
    app.add_url_rule(
        "/api/engines/probe", "engines probe", routes.probe, methods=["POST"], facts=RouteFacts(gives=Table)
    )
    app.add_url_rule(
        "/api/engines/prove",
        "engines prove",
        routes.prove,
        methods=["POST"],
        facts=RouteFacts(takes=ProveRequest, gives=Table),
    )
    app.add_url_rule(
        "/api/engines/use", "engines use", routes.use, methods=["POST"], facts=RouteFacts(takes=EngineWish, gives=Table)
    )
    app.add_url_rule(
        "/api/engines/rollback",
        "engines rollback",
        routes.roll_back,
        methods=["POST"],
        facts=RouteFacts(takes=RollbackRequest, gives=Table),
    )
