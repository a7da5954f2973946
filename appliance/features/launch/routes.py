"""``GET /api/launch``: where clients on the server's own machine find it."""

from __future__ import annotations

from quart import Response

from appliance.features.launch.core.checks import ClientsAddress
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel

EVERYWHERE = {"://0.0.0.0:": "://127.0.0.1:", "://[::]:": "://[::1]:"}
"""Addresses to listen on, and those to connect to."""


def launch_routes(kernel: Kernel) -> Routes:
    routes = Routes("launch")

    @routes.get("/api/launch")
    async def show_address() -> Response:
        url = kernel.edge.url
        for listened, connected in EVERYWHERE.items():
            url = url.replace(listened, connected)
        return json_answer(ClientsAddress(url))

    return routes
