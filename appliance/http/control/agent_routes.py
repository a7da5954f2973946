"""``/api/agents``: which plugins there are, and looking for them again."""

from __future__ import annotations

from msgspec import Struct
from quart import Response
from quart_trio import QuartTrio

from appliance.http.control.answers import json_answer
from appliance.plugins.registry import Listed, Plugins


class Agents(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/agents``.

    ``problems`` are folders that cannot be read, and plugins of the configuration that are not there. ``off`` is None,
    or why there are no plugins at all, and how there would be some.
    """

    agents: list[Listed]
    folders: tuple[str, ...]
    problems: tuple[str, ...]
    off: str | None


def agents_of(plugins: Plugins) -> Agents:
    """Return the plugins as known now."""
    return Agents(
        agents=plugins.listed(),
        folders=tuple(str(folder) for folder in plugins.choice.folders),
        problems=plugins.problems,
        off=plugins.choice.off,
    )


def add_agent_routes(app: QuartTrio, plugins: Plugins) -> None:
    """``GET /api/agents``, and ``POST /api/agents/reload``, which answers when all are loaded or cannot be."""

    async def show() -> Response:
        plugins.begin()
        return json_answer(agents_of(plugins))

    async def reload() -> Response:
        await plugins.look()
        await plugins.wait_loaded()
        return json_answer(agents_of(plugins))

    app.add_url_rule("/api/agents", "agents", show)
    app.add_url_rule("/api/agents/reload", "agents reload", reload, methods=["POST"])
