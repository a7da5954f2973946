"""Plugins over HTTP: ``/api/agents``."""

from __future__ import annotations

from msgspec import Struct, structs
from quart import Response

from appliance.core.secrets import without_secret_values
from appliance.features.plugins.registry import ListedPlugin, Plugins
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes


class AgentList(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/agents``.

    ``problems`` are folders that cannot be read, and plugins of the configuration that are not there. ``off`` is None,
    or why there are no plugins at all, and how there would be some.
    """

    agents: list[ListedPlugin]
    folders: tuple[str, ...]
    problems: tuple[str, ...]
    off: str | None


def agents_of(plugins: Plugins) -> AgentList:
    """Return the plugins as known now, without the secrets in their settings."""
    return AgentList(
        agents=[structs.replace(each, values=without_secret_values(each.values)) for each in plugins.listed()],
        folders=tuple(str(folder) for folder in plugins.choice.folders),
        problems=plugins.problems,
        off=plugins.choice.off,
    )


def agent_routes(plugins: Plugins) -> Routes:
    """``GET /api/agents``, and ``POST /api/agents/reload``, which answers when all are loaded or cannot be."""
    routes = Routes("plugins")

    @routes.get("/api/agents")
    async def show() -> Response:
        plugins.begin()
        return json_answer(agents_of(plugins))

    @routes.post("/api/agents/reload")
    async def reload() -> Response:
        await plugins.look()
        await plugins.wait_loaded()
        return json_answer(agents_of(plugins))

    return routes
