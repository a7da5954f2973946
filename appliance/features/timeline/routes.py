"""``GET /api/history``: the entries of the timeline, in words."""

from __future__ import annotations

from quart import Response

from appliance.core.records.history_words import told
from appliance.features.timeline.rules import parse_history_query
from appliance.http.control.answers import json_answer, parameters
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel


def timeline_routes(kernel: Kernel) -> Routes:
    routes = Routes("timeline")

    @routes.get("/api/history")
    async def show_history() -> Response:
        entries = await kernel.owners.history.read(parse_history_query(parameters()))
        return json_answer({"data": [told(entry) for entry in entries]})

    return routes
