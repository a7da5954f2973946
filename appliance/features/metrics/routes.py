"""The load of the machine, and its hardware: ``/api/performance`` and ``/api/hardware`` of llama-swap (0bdb3720)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from quart import Response, request

from appliance.core.machine import Hardware
from appliance.core.parameters import read_time
from appliance.errors import Busy
from appliance.features.metrics.samples import Samples
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.route_facts import RouteFacts


def machine_routes(samples: Samples, detect: Callable[[], Awaitable[Hardware | None]]) -> Routes:
    """``detect`` looks at the hardware; its answer is kept."""
    routes, found, detecting = Routes("machine"), list[Hardware](), trio.Lock()

    @routes.get("/api/performance")
    async def show_performance() -> Response:
        if not samples.enabled:
            return json_answer({"enabled": False}, 503)
        after = request.args.get("after")
        return json_answer(samples.since(read_time(after, "after") if after else None))

    @routes.get("/api/hardware", facts=RouteFacts(gives=Hardware))
    async def show_hardware() -> Response:
        async with detecting:
            if not found and (seen := await detect()) is not None:
                found.append(seen)
        if not found:
            raise Busy("the hardware cannot be described; the log says why", retry_after=60)
        return json_answer(found[0])

    return routes
