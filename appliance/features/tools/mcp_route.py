"""``/mcp`` among the program's own routes. The server behind it is imported when it is switched on, or asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import MCP
from appliance.traffic.request import Request

if TYPE_CHECKING:
    from appliance.features.tools.mcp_server import McpServer


class McpRoute:
    """Raises BadRequest for a tool in the settings that is missing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._server = self._make_server() if kernel.settings.mcp_server else None

    def answers(self, request: Request) -> bool:
        return request.path == MCP

    async def answer(self, context: RequestContext) -> None:
        self._server = self._server or self._make_server()
        await self._server.answer(context)

    def _make_server(self) -> McpServer:
        from appliance.features.tools.mcp_server import McpServer

        return McpServer(self._kernel)
