"""Prompts and resources of the MCP servers that the program uses, over HTTP: ``/api/mcp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from quart import Response

from appliance.core.mcp.offers import Offers
from appliance.errors import NotFound
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import RouteFacts, Routes
from appliance.tools.box import OpenToolbox

if TYPE_CHECKING:
    from appliance.tools.mcp_client import McpClient


class PromptRequest(Struct):
    server: str
    name: str
    arguments: dict[str, str] = {}


class ResourceRequest(Struct):
    server: str
    uri: str


def add_mcp_routes(app: Routes, tools: OpenToolbox) -> None:
    """Prompts and resources of the MCP servers that the program uses, for its page."""

    def named(name: str) -> McpClient:
        if (server := tools.servers.get(name)) is None:
            known = ", ".join(tools.servers) or "none"
            raise NotFound(f"there is no MCP server '{name}'; there is {known}")
        return server

    async def offers() -> Response:
        found: list[Offers] = []

        async def ask(server: McpClient) -> None:
            found.append(await server.offers())

        async with trio.open_nursery() as nursery:
            for server in tools.servers.values():
                nursery.start_soon(ask, server)
        return json_answer({"servers": sorted(found, key=lambda one: one.server)})

    async def prompt() -> Response:
        asked = await read_as(PromptRequest)
        return json_answer({"text": await named(asked.server).prompt(asked.name, asked.arguments)})

    async def resource() -> Response:
        asked = await read_as(ResourceRequest)
        return json_answer({"text": await named(asked.server).resource(asked.uri)})

    app.add_url_rule("/api/mcp", "mcp offers", offers)
    app.add_url_rule("/api/mcp/prompt", "mcp prompt", prompt, methods=["POST"], facts=RouteFacts(takes=PromptRequest))
    app.add_url_rule(
        "/api/mcp/resource", "mcp resource", resource, methods=["POST"], facts=RouteFacts(takes=ResourceRequest)
    )
