"""The program's own routes on Quart: load and unload, downloads, runs, logs, events, introspection.

Imported when the first of them is asked for: Quart costs 17 MB and a third of a second that inference does not need.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial

import trio
from msgspec import Struct
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from appliance.catalog.catalog import find_model
from appliance.errors import (
    BadRequest,
    RouteNotFound,
)
from appliance.fleet.status import state_of
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.model_feed import add_model_feed
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.owners import Owners
from appliance.http.route_facts import RouteFacts
from appliance.trio_parts import Memo

log = logging.getLogger(__name__)


class ControlRequest(Struct):
    """Body of ``POST /models/load`` and ``/models/unload``. ``wait``: answer when it is done."""

    model: str
    wait: bool = False


class Control:
    """Models here: load and unload. Every method is one route."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._fleet = owners.fleet
        self._catalog = owners.catalog

    async def load(self) -> Response:
        asked = await _control_request()
        model = await find_model(self._catalog, asked.model)
        if asked.wait:
            await self._fleet.load(model)
        elif state_of(self._fleet.known(model.id)) != "unloaded":
            raise BadRequest("model is already running", param="model")
        else:
            await self._fleet.load(model, wait=False)
        return json_answer({"success": True})

    async def unload(self) -> Response:
        asked = await _control_request()
        model = self._catalog.snapshot.find(asked.model)
        if download := self._owners.supply.under_way(asked.model, model):
            download.cancel()
            await download.wait()
            return json_answer({"success": True})
        model_id = model.id if model else asked.model  # it may run although its file is gone
        if model is None and self._fleet.known(model_id) is None:
            raise BadRequest("model is not found", param="model")
        if not await self._fleet.unload(model_id, wait=asked.wait):
            raise BadRequest("model is not running", param="model")
        return json_answer({"success": True})


def create_app(
    kernel: Kernel, features: Iterable[Callable[[Kernel], Routes]]
) -> tuple[QuartTrio, dict[str, RouteFacts]]:
    """The ASGI application of the kernel's own routes and of those that features make, and the facts about each.

    The gateway has checked Host, Origin and key before.
    """
    owners, traffic = kernel.owners, kernel.traffic
    control = Control(owners)
    app = QuartTrio("appliance.http", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = None  # the body has been read, and bounded, before
    app.config["RESPONSE_TIMEOUT"] = None  # the connection bounds stalled writes; Quart would cut streams silently
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    own = Routes("own")
    own.add_url_rule("/models/load", "load", control.load, methods=["POST"], facts=RouteFacts(takes=ControlRequest))
    own.add_url_rule(
        "/models/unload", "unload", control.unload, methods=["POST"], facts=RouteFacts(takes=ControlRequest)
    )
    add_model_feed(own, owners, traffic.lifetime)
    facts: dict[str, RouteFacts] = {}
    for routes in (own, _openapi_routes(app, facts, kernel), *(make(kernel) for make in features)):
        app.register_blueprint(routes)
        facts |= routes.facts
    app.register_error_handler(HTTPException, _pass_on)
    app.register_error_handler(Exception, _pass_on)
    return app, facts


def _openapi_routes(app: QuartTrio, facts: dict[str, RouteFacts], kernel: Kernel) -> Routes:
    routes, described = Routes("openapi"), Memo[dict[str, object]](math.inf)

    @routes.get("/openapi.json")
    async def describe_routes() -> Response:
        """This document."""
        from appliance.http.control.openapi import openapi_document

        def describe() -> dict[str, object]:
            """For a hundred shapes that takes 30 ms, once, and the modules that have them are imported."""
            gets = {path: make() for path, make in kernel.gets().items()}
            return openapi_document(app, facts, gets, kernel.described())

        return json_answer(await described.get(partial(trio.to_thread.run_sync, describe)))

    return routes


async def _control_request() -> ControlRequest:
    asked = await read_as(ControlRequest)
    if not asked.model:
        raise BadRequest("'model' is empty", param="model")
    return asked


async def _pass_on(error: Exception) -> Response:
    """Leave it to the gateway, which tells every error of the program; see `QuartBehind.answer`."""
    if isinstance(error, HTTPException):
        error = (
            RouteNotFound(request.method, request.path)
            if error.code in (404, 405)
            else BadRequest(error.description or "the request cannot be used")
        )
    request.scope["state"]["failed"].append(error)
    return Response("")
