"""``GET /api/fit``: how a model would be started. ``GET /api/memory``: what lies where, and what would go for it."""

from __future__ import annotations

from msgspec import to_builtins
from quart import Response, request

from appliance.catalog.catalog import find_model
from appliance.core.memory import DeviceUse
from appliance.core.models.model import Model
from appliance.errors import BadRequest, NotFound
from appliance.features.fit.core.picture import DeviceMemory, LoadForecast, MemoryTable, share_of
from appliance.fleet.owner import Fleet
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts


def memory_routes(kernel: Kernel) -> Routes:
    routes, fleet, catalog = Routes("fit"), kernel.owners.fleet, kernel.owners.catalog

    @routes.get("/api/fit")
    async def fit() -> Response:
        name = request.args.get("model", "")
        if not name:
            raise BadRequest("say which model: /api/fit?model=NAME", param="model")
        model = await find_model(catalog, name)
        plan = fleet.outlook.plan(model, fleet.launches.engine_for(model))
        if plan is None:
            raise NotFound(f"what model '{name}' takes cannot be foretold: no file here says enough of it")
        return json_answer({"model": name, **to_builtins(plan)})

    @routes.get("/api/memory", facts=RouteFacts(gives=MemoryTable))
    async def memory() -> Response:
        name = request.args.get("model", "")
        load = foresee(fleet, await find_model(catalog, name)) if name else None
        return json_answer(MemoryTable(devices=show_memory(fleet), load=load))

    return routes


def foresee(fleet: Fleet, model: Model) -> LoadForecast:
    """Return the effect that a request for the model would have now. Asks the system."""
    outlook, engine = fleet.outlook, fleet.launches.engine_for(model)
    known, found = fleet.known(model.id), outlook.foresee(model, engine)
    plan = outlook.plan(model, engine, going=found.goes)
    return LoadForecast(
        model=model.id,
        state=known.state if known is not None else "unloaded",
        takes=outlook.takes(model, engine),
        goes=found.goes,
        held=found.held,
        before=found.before,
        expected=outlook.time_to_load([*found.before, *([] if fleet.is_ready(model.id) else [model.id])]),
        fits=plan.verdict if plan is not None else None,
        why=str(found.refused) if found.refused is not None else plan.why if plan is not None else "",
        refused=found.refused is not None,
    )


def show_memory(fleet: Fleet) -> tuple[DeviceMemory, ...]:
    """Return every device with the models on it. Asks the system."""
    outlook, shown = fleet.outlook, list[DeviceMemory]()
    gpus, budgets = outlook.look.gpus if outlook.look is not None else (), outlook.budgets()
    names = {f"gpu{number}": gpu.name for number, gpu in enumerate(gpus)}
    for device, memory in outlook.devices().items():
        shares = tuple(
            share_of(one.model, one.state, total, fleet.planned_memory(one.model).get(device, DeviceUse()))
            for one in fleet.status()
            if (total := fleet.memory(one.model).get(device, 0))
        )
        shown.append(
            DeviceMemory(
                device=device,
                name=names.get(device, ""),
                total=memory.total,
                free=max(0, memory.total - memory.used),
                other=max(0, memory.used - sum(share.total for share in shares)),
                budget=budgets.get(device),
                models=shares,
            )
        )
    return tuple(shown)
