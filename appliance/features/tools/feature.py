"""The sign-in of the feature.

Its box opens before the owners of the kernel, which gives it to runs and plugins: a setting that is wrong ends the
start there. Runs are asked for by `core.turns.tasks`, and without them the MCP server offers none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.features.tools.box import OpenToolbox
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute
    from appliance.http.way.hooks import Turn
    from appliance.settings import AppSettings


def tool_parts(box: OpenToolbox) -> ServerParts:
    """Return the parts that use this box, and the box itself."""
    from appliance.features.tools.turn import ToolChats
    from appliance.http.late import LateRoute
    from appliance.http.way.routes import MCP, TOOLS

    def routes(_: Kernel) -> Routes:
        from appliance.features.tools.routes import mcp_routes

        return mcp_routes(box)

    def use(kernel: Kernel) -> EdgeRoute:
        def make() -> EdgeAnswer:
            from appliance.features.tools.tool_routes import ToolRoutes

            return ToolRoutes(box, kernel.traffic.lifetime)

        return LateRoute(lambda request: request.path == TOOLS, make)

    def serve_mcp(kernel: Kernel) -> EdgeRoute:
        def make() -> EdgeAnswer:
            from appliance.features.tools.mcp_server import McpServer

            return McpServer(kernel)

        route = LateRoute(lambda request: request.path == MCP, make)
        if kernel.settings.mcp_server:
            route.made()  # BadRequest for a tool in the settings that is missing
        return route

    def turn(kernel: Kernel) -> Turn:
        return ToolChats(box, lambda: kernel.in_force().runs.tool_timeout, kernel.settings.ping_after)

    return ServerParts(routes=routes, edges=(use, serve_mcp), turns=(turn,), tools=box)


@asynccontextmanager
async def _open_first(settings: AppSettings) -> AsyncGenerator[ServerParts]:
    from appliance.features.tools.box import open_own_tools

    async with open_own_tools(settings.tools) as box:
        yield tool_parts(box)


def _verb() -> click.Command:
    from appliance.features.tools.verb import mcp

    return mcp


def _described() -> Sequence[DescribedRoute]:
    from appliance.features.tools.tool_routes import ToolUseBody
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts
    from appliance.http.way.routes import MCP, TOOLS

    return [
        DescribedRoute("GET", TOOLS, says="The tools of this server."),
        DescribedRoute("POST", TOOLS, RouteFacts(most=AS_MODELS, takes=ToolUseBody), "Use a tool; its result."),
        DescribedRoute("POST", MCP, RouteFacts(most=AS_MODELS), "A message of MCP (JSON-RPC 2.0)."),
    ]


TOOLS = Feature(
    name="tools",
    described=_described,
    verbs=(Verb("mcp", "server", "Connect a desktop client to the running server, by MCP.", _verb, page="mcp.md"),),
    open_first=_open_first,
)
