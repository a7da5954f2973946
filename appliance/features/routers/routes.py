"""The routes, answered without Quart: monitors ask them first and often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from appliance.catalog.catalog import find_model
from appliance.core.models.model import Model
from appliance.errors import ModelNotFound
from appliance.features.routers import answers
from appliance.http.control.edge_routes import send_json
from appliance.http.control.listing import View
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import Get, Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole
from appliance.traffic.targets import refresh


def router_gets(kernel: Kernel) -> Mapping[str, Get]:
    owners, traffic = kernel.owners, kernel.traffic
    fleet, catalog = owners.fleet, owners.catalog
    view = View(fleet, catalog, owners.peers, traffic.profile)

    async def served(request: Request) -> Model:
        """Return the model that the path names, or the first one of the list. Raises ModelNotFound."""
        await refresh(catalog)
        shown = [model for model in catalog.snapshot.models if not model.hidden]
        wanted = view.model_id(request.only) if request.only else min((model.id for model in shown), default="")
        found = next((model for model in shown if model.id == wanted), None)
        if found is None:
            raise ModelNotFound(request.only, catalog.snapshot.near(request.only))
        return await find_model(catalog, found.id) if found.unread else found

    async def ready(context: RequestContext) -> None:
        told = answers.ready(fleet, catalog, owners.engines, traffic.lifetime, kernel.settings.single)
        status = 200 if told.status == "ready" else 503
        await send_whole(context.sink, status, (JSON_TYPE,), msgspec.json.encode(told))

    async def server_info(context: RequestContext) -> None:
        model = await served(context.request)
        await send_json(context, answers.server_info(model, fleet.known(model.id)))

    async def model_info(context: RequestContext) -> None:
        await send_json(context, answers.model_info(await served(context.request)))

    async def loads(context: RequestContext) -> None:
        """The loads of the model that the path names, or of all."""
        name = context.request.only
        only = name and (view.model_id(name) or name)
        children = [child for child in fleet.status() if only in ("", child.model)]
        await send_json(context, answers.loads(children, datetime.now(UTC).isoformat()))

    return {
        "/get_model_info": model_info,
        "/get_server_info": server_info,
        "/model_info": model_info,
        "/ready": ready,
        "/v1/loads": loads,
    }
