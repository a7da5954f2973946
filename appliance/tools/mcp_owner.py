"""The MCP servers that the program uses: it asks all of them for their tools once, before it accepts clients."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from appliance.core.mcp.config import HttpServer, McpServer, McpServers, StdioServer
from appliance.core.mcp.messages import unique
from appliance.core.tools.tool import ToolContext, ToolOutcome, ToolProblem, ToolSpec
from appliance.platform.children import Children
from appliance.tools.mcp_client import McpClient, Tools
from appliance.tools.mcp_http import place_of, run_http
from appliance.tools.mcp_session import Session, Start
from appliance.tools.mcp_stdio import run_stdio

WARM_UP_TIME = 10.0
"""Seconds for one server to start and to list its tools; all do it at once."""

log = logging.getLogger(__name__)


class McpTools:
    """The tools of all servers, as they were when the program started; a `ToolSource`."""

    def __init__(self, found: Sequence[tuple[McpClient, Tools]]) -> None:
        self._specs: list[ToolSpec] = []
        self._clients: dict[str, tuple[McpClient, str]] = {}
        taken: set[str] = set()
        for client, tools in found:
            kept, warnings = unique(tools, taken)
            for warning in warnings:
                log.warning("%s", warning)
            for spec, name in kept:
                self._specs.append(spec)
                self._clients[spec.name] = (client, name)

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Use a tool by its offered name. Raises ToolProblem for an unknown name."""
        if name not in self._clients:
            raise ToolProblem(name, "no MCP server has it")
        client, own_name = self._clients[name]
        return await client.call(own_name, arguments)


@asynccontextmanager
async def open_mcp(servers: McpServers, children: Children) -> AsyncGenerator[McpTools]:
    """Own the servers' sessions and processes. Returns once every server has listed its tools, or has run out of time.

    The reader of the configuration reports `McpServers.warnings`. Leaving takes little more than a second, whatever the
    servers do. Raises UsageError for an address that cannot be used.
    """
    places = {server.name: place_of(server) for server in servers.servers if isinstance(server, HttpServer)}
    async with trio.open_nursery() as sessions:

        def start_of(server: McpServer) -> Start:
            async def start() -> Session:
                match server:
                    case StdioServer():
                        return await sessions.start(partial(run_stdio, server, children))
                    case HttpServer():
                        return await sessions.start(partial(run_http, places[server.name]))

            return start

        clients = [McpClient(server, start_of(server)) for server in servers.servers]
        yield McpTools(await _warm_up(clients))
        sessions.cancel_scope.cancel()


async def _warm_up(clients: Sequence[McpClient]) -> list[tuple[McpClient, Tools]]:
    found: dict[str, Tools] = {}

    async def ask(client: McpClient) -> None:
        with trio.move_on_after(WARM_UP_TIME) as limit:
            found[client.name] = await client.list_tools()
        if limit.cancelled_caught:
            log.warning("MCP server '%s' provides no tools: it took more than %g s", client.name, WARM_UP_TIME)
        await client.wait_gone()

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(ask, client)
    return [(client, found.get(client.name, [])) for client in clients]
