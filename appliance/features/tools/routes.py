"""Prompts and resources of the MCP servers that the program uses, over HTTP: ``/api/mcp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from quart import Response

from appliance.errors import NotFound
from appliance.features.tools.box import OpenToolbox
from appliance.features.tools.core.mcp_messages import Offers
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import Routes
from appliance.http.route_facts import RouteFacts

if TYPE_CHECKING:
    from appliance.features.tools.mcp_client import McpClient


class PromptRequest(Struct):
    server: str
    name: str
    arguments: dict[str, str] = {}


class ResourceRequest(Struct):
    server: str
    uri: str


def mcp_routes(tools: OpenToolbox) -> Routes:
    """Return the routes with which the page fills in prompts, and reads resources."""
    routes = Routes("mcp")

    def named(name: str) -> McpClient:
        if (server := tools.servers.get(name)) is None:
            known = ", ".join(tools.servers) or "none"
            raise NotFound(f"there is no MCP server '{name}'; there is {known}")
        return server

    @routes.get("/api/mcp")
    async def mcp_offers() -> Response:
        found: list[Offers] = []

        async def ask(server: McpClient) -> None:
            found.append(await server.offers())

        async with trio.open_nursery() as nursery:
            for server in tools.servers.values():
                nursery.start_soon(ask, server)
        return json_answer({"servers": sorted(found, key=lambda one: one.server)})

    @routes.post("/api/mcp/prompt", facts=RouteFacts(takes=PromptRequest))
    async def mcp_prompt() -> Response:
        asked = await read_as(PromptRequest)
        return json_answer({"text": await named(asked.server).prompt(asked.name, asked.arguments)})

    @routes.post("/api/mcp/resource", facts=RouteFacts(takes=ResourceRequest))
    async def mcp_resource() -> Response:
        asked = await read_as(ResourceRequest)
        return json_answer({"text": await named(asked.server).resource(asked.uri)})

    return routes
