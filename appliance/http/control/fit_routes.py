"""The plan for a model beside those that are loaded now, without loading it."""

from __future__ import annotations

from msgspec import to_builtins
from quart import Quart, Response, request

from appliance.catalog.catalog import Catalog
from appliance.core.fit.plan import fit_of
from appliance.errors import BadRequest, NotFound
from appliance.fleet.owner import Fleet
from appliance.http.control.answers import json_answer
from appliance.traffic.choice import find_model


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
