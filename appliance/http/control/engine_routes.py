"""``/api/engines``: which engines there are and how they stand, and looking at them again; and how a model would fit.

No route installs an engine, names one or chooses among them: that is for the command line, on this machine. How a model
would fit beside what is loaded now is the plan, without loading it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct, to_builtins
from quart import Quart, Response, request
from quart_trio import QuartTrio

from appliance.catalog.catalog import Catalog
from appliance.core.engines.choice import Seat
from appliance.core.fit.plan import fit_of
from appliance.engines.owner import Engines
from appliance.engines.table import Table, table
from appliance.errors import BadRequest, Conflict, NotFound
from appliance.fleet.owner import Fleet
from appliance.fleet.status import ChildStatus
from appliance.http.control.answers import json_answer
from appliance.traffic.targets import find_model


class FitRoutes:
    """Every method is one route."""

    def __init__(self, catalog: Catalog, fleet: Fleet) -> None:
        self._catalog = catalog
        self._fleet = fleet

    async def fit(self) -> Response:
        name = request.args.get("model", "")
        if not name:
            raise BadRequest("say which model: /api/fit?model=NAME", param="model")
        plan = self._fleet.plan(await find_model(self._catalog, name))
        if plan is None:
            raise NotFound(f"what model '{name}' takes cannot be foretold: no file here says enough of it")
        return json_answer({"model": name, **to_builtins(fit_of(plan))})


def add_fit_routes(app: Quart, routes: FitRoutes) -> None:
    app.add_url_rule("/api/fit", view_func=routes.fit, methods=["GET"])


class ProveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/engines/prove``: ids of seats or builds; none: all that nobody has tried."""

    seats: tuple[str, ...] = ()


MAX_WAITING = 4
"""Requests to prove that are under way or wait for their turn; each takes a core for a while."""

_PROVE = msgspec.json.Decoder(ProveRequest)


class EngineRoutes:
    """Every method is one route.

    ``running`` says which models have a process on which seat; ``settled`` is called when more is known than before.
    """

    def __init__(self, engines: Engines, running: Callable[[], Mapping[str, str]], settled: Callable[[], None]) -> None:
        self._settled = settled
        self._engines = engines
        self._running = running
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
        body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        try:
            asked = _PROVE.decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadRequest(f"the request body cannot be used: {error}") from None
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

    async def _table(self) -> Table:
        engines = self._engines
        await engines.sync()  # another program may have chosen, or be at an update
        return table(engines.engines, engines.ranked(), engines.state, running=self._running(), now=time.time())


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


def add_engine_routes(app: QuartTrio, routes: EngineRoutes) -> None:
    app.add_url_rule("/api/engines", "engines", routes.show)
    app.add_url_rule("/api/engines/probe", "engines probe", routes.probe, methods=["POST"])
    app.add_url_rule("/api/engines/prove", "engines prove", routes.prove, methods=["POST"])
