"""The sign-in of the feature. Its turn is asked before that of tools: a command is taken from the text first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.core.config.nodes import Problem
    from appliance.core.config.types import Config
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel
    from appliance.http.way.hooks import Turn


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.features.plugins.found import DATA
    from appliance.features.plugins.registry import open_plugins
    from appliance.plugins.folders import choice_of

    settings, data = ground.settings, ground.data / DATA

    def routes(_: Kernel) -> Routes:
        from appliance.features.plugins.routes import agent_routes

        return agent_routes(plugins)

    def turn(kernel: Kernel) -> Turn:
        from appliance.features.plugins.turn import PluginChains

        return PluginChains(plugins, kernel.inward, kernel.traffic.targets.names, kernel.ask.pings)

    async def reload(config: Config | None) -> Sequence[Problem]:
        plugins.choice = choice_of(config, settings.plugins)
        await plugins.look()
        return plugins.unknown

    choice = choice_of(settings.config, settings.plugins)
    async with open_plugins(choice, data, watch=settings.watch_config) as plugins:
        yield ServerParts(routes=routes, turns=(turn,), reload=reload, folders={"plugins": data})


def _verb() -> click.Command:
    from appliance.features.plugins.verb import agents

    return agents


_DOES = "List the plugins behind slash commands, load them again, or create one."
PLUGINS = Feature(
    name="plugins", verbs=(Verb("agents", "for developers", _DOES, _verb, page="plugins.md"),), open=_open
)
