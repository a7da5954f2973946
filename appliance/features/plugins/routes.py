"""Plugins over HTTP: ``/api/agents``, without the secrets in their settings."""

from __future__ import annotations

from msgspec import structs
from quart import Response

from appliance.core.secrets import without_secret_values
from appliance.features.plugins.registry import Plugins
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes


def agent_routes(plugins: Plugins) -> Routes:
    """``GET /api/agents``, and ``POST /api/agents/reload``, which answers when all are loaded or cannot be."""
    routes = Routes("plugins")

    def listed() -> Response:
        found = plugins.listed()
        agents = [structs.replace(each, values=without_secret_values(each.values)) for each in found.agents]
        return json_answer(structs.replace(found, agents=agents))

    @routes.get("/api/agents")
    async def show() -> Response:
        plugins.begin()
        return listed()

    @routes.post("/api/agents/reload")
    async def reload() -> Response:
        await plugins.look()
        await plugins.wait_loaded()
        return listed()

    return routes
