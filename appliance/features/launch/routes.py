"""``GET /api/launch``: where clients on the server's own machine find it."""

from __future__ import annotations

from urllib.parse import urlsplit

from quart import Response

from appliance.http.bytes.listening import reachable, shown
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel


def launch_routes(kernel: Kernel) -> Routes:
    routes = Routes("launch")

    @routes.get("/api/launch")
    async def show_address() -> Response:
        from appliance.features.launch.core.checks import ClientsAddress  # with the files of all clients

        where = urlsplit(kernel.edge.url)
        if where.hostname is not None and where.port is not None:
            where = where._replace(netloc=shown((reachable(where.hostname), where.port)))
        return json_answer(ClientsAddress(where.geturl()))

    return routes
