"""The MCP servers that the program uses, and the program as their client.

All servers are asked for their tools once, before the program accepts clients.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from msgspec import Raw

from appliance.core.config.mcp_servers import McpServer, McpServers, StdioServer
from appliance.core.tools.box import ToolContext, ToolOutcome, ToolProblem, ToolSpec
from appliance.features.tools.core import mcp_messages
from appliance.features.tools.mcp_session import McpSession, SessionLost, Start, place_of, run_http, run_stdio
from appliance.platform.children import Children
from appliance.trio_parts import beside

START_TIME = 10.0  # seconds, at least, that a server has to start; its own time limit is for its uses
COOLDOWN = 5.0  # seconds after a failed start until the next attempt
MAX_PAGES = 20  # limit on a list of tools
MAX_LIST = 4 << 20
"""Limit in bytes on one server's description of its tools: every client of /tools gets it, and every model that may use
all.
"""
GIVE_UP_TIME = 1.0

log = logging.getLogger(__name__)

Tools = list[tuple[ToolSpec, str]]  # each tool as it is offered, and its name on the server
WARM_UP_TIME = 10.0  # seconds for one server to start and to list its tools; all do it at once


class Unavailable(SessionLost):
    """The server could not be started, now or a moment ago."""


class McpClient:
    """Made by `open_mcp`, which runs the sessions in its tasks."""

    def __init__(self, server: McpServer, start: Start) -> None:
        self.name = server.name
        self._timeout = server.timeout
        self._start = start
        self._session: McpSession | None = None
        self._one_at_a_time = trio.Lock()
        self._not_before = -1.0

    async def list_tools(self) -> Tools:
        """Start the server, list its tools, and stop it. Empty, with a warning in the log, when that fails."""
        async with self._one_at_a_time:
            try:
                session = await self._ready()
                return await self._all_pages(session)
            except Unavailable:
                return []
            except SessionLost as lost:
                log.warning("MCP server '%s' provides no tools: %s", self.name, lost.why)
                return []
            finally:
                if self._session is not None:
                    self._session.end()

    async def call(self, tool: str, arguments: bytes) -> ToolOutcome:
        """Use a tool; the outcome reports every failure. Cancelling it ends the server's process."""
        try:
            params = mcp_messages.call_params(tool, arguments)
        except ValueError as error:
            return mcp_messages.failed(str(error))
        async with self._one_at_a_time:
            try:
                try:
                    return await self._ask_tool(params)
                except SessionLost as lost:
                    if not lost.unsent:
                        raise
                    return await self._ask_tool(params)  # the server had died before, and knows nothing of it
            except Unavailable:
                return mcp_messages.failed(f"MCP server unavailable: {self.name}")
            except SessionLost as lost:
                return mcp_messages.failed(f"MCP server '{self.name}' failed during the call: {lost.why}")

    async def offers(self) -> mcp_messages.Offers:
        """Return its prompts and resources; the answer reports a server that cannot be asked."""
        async with self._one_at_a_time:
            try:
                session = await self._ready()
                prompts = await self._ask(session, "prompts/list", None, self._timeout)
                resources = await self._ask(session, "resources/list", None, self._timeout)
            except SessionLost as lost:
                return mcp_messages.Offers(server=self.name, error=lost.why)
        return mcp_messages.Offers(
            server=self.name,
            prompts=mcp_messages.read_offers(prompts, "prompts", mcp_messages.McpPrompt),
            resources=mcp_messages.read_offers(resources, "resources", mcp_messages.Resource),
        )

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text that the server makes of a prompt. Raises ToolProblem."""
        return await self._text("prompts/get", {"name": name, "arguments": dict(arguments)}, mcp_messages.prompt_text)

    async def resource(self, uri: str) -> str:
        """Return the text of a resource. Raises ToolProblem."""
        return await self._text("resources/read", {"uri": uri}, mcp_messages.resource_text)

    async def _text(self, method: str, params: object, text_of: Callable[[Raw], str]) -> str:
        async with self._one_at_a_time:
            try:
                answer = await self._ask(await self._ready(), method, params, self._timeout)
            except SessionLost as lost:
                raise ToolProblem(self.name, lost.why) from None
        if answer is None:
            raise ToolProblem(self.name, "it did not answer in time")
        if answer.error is not None:
            raise ToolProblem(self.name, answer.error.message)
        try:
            return text_of(answer.result or Raw(b"{}"))
        except ValueError as error:
            raise ToolProblem(self.name, str(error)) from None

    async def wait_gone(self) -> None:
        if self._session is not None:
            await self._session.gone.wait()

    async def _ask_tool(self, params: object) -> ToolOutcome:
        session = await self._ready()
        dropped = session.dropped
        answer = await self._ask(session, "tools/call", params, self._timeout)
        if answer is not None:
            return mcp_messages.outcome(answer)
        too_long = "; the MCP server sent a message that is longer than 8 MiB, which was dropped"
        return mcp_messages.failed(f"request timed out{too_long if session.dropped > dropped else ''}")

    async def _ready(self) -> McpSession:
        """Return the session, a new one if there is none. Raises Unavailable."""
        if self._session is not None:
            for _ in range(2):
                await trio.lowlevel.checkpoint()  # the first reports a process that has ended, the second fails
            if self._session.alive:
                return self._session
            await self._session.gone.wait()
            self._session = None
        if trio.current_time() < self._not_before:
            raise Unavailable("it failed to start a moment ago")
        try:
            return await self._begin()
        except SessionLost as lost:
            self._not_before = trio.current_time() + COOLDOWN
            log.warning("MCP server '%s' cannot be used: %s", self.name, lost.why)
            raise Unavailable(lost.why) from None

    async def _begin(self) -> McpSession:
        """Start and shake hands. Raises SessionLost."""
        self._session = session = await self._start()
        begun = False
        try:
            seconds = max(self._timeout, START_TIME)
            params = {"protocolVersion": session.version, "capabilities": {}, "clientInfo": mcp_messages.CLIENT_INFO}
            answer = await self._ask(session, "initialize", params, seconds)
            if answer is None:
                raise SessionLost(f"it did not answer 'initialize' within {seconds:g} s")
            if answer.error is not None:
                raise SessionLost(f"it refuses 'initialize': {answer.error.message}")
            session.begun(answer.result or Raw(b"{}"))
            await session.notify("notifications/initialized")
            begun = True
        finally:
            if not begun:
                session.end()
        return session

    async def _ask(
        self, session: McpSession, method: str, params: object, seconds: float
    ) -> mcp_messages.RpcAnswer | None:
        """Return None, and notify the server, when the time is up. Raises SessionLost."""
        settled = False
        try:
            with trio.move_on_after(seconds) as limit:
                answer = await session.ask(method, params)
                settled = True
                return answer
            settled = limit.cancelled_caught
            why = {"requestId": session.last, "reason": "it took too long"}
            with trio.move_on_after(GIVE_UP_TIME), suppress(SessionLost):  # the next request finds out
                await session.notify("notifications/cancelled", why)
            return None
        finally:
            if not settled:
                session.end(busy=True)  # nobody waits any more, so nothing is to go on

    async def _all_pages(self, session: McpSession) -> Tools:
        found: Tools = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            asked = {"cursor": cursor} if cursor else None
            answer = await self._ask(session, "tools/list", asked, max(self._timeout, START_TIME))
            if answer is None:
                raise SessionLost("it did not answer 'tools/list' in time")
            page = mcp_messages.read_tools(self.name, answer.result) if answer.result is not None else None
            if page is None:
                why = answer.error.message if answer.error is not None else "its answer is not a list of tools"
                raise SessionLost(f"'tools/list' failed: {why}")
            for warning in page.warnings:
                log.warning("%s", warning)
            for spec, name in page.tools:
                size += spec.size
                if len(found) == mcp_messages.MAX_TOOLS or size > MAX_LIST:
                    most = f"{mcp_messages.MAX_TOOLS} tools, or describes them in more than {MAX_LIST >> 20} MiB"
                    log.warning("MCP server '%s' has more than %s; the others are left out", self.name, most)
                    return found
                found.append((spec, name))
            if (cursor := page.cursor) is None:
                break
        return found


class McpTools:
    """The tools of all servers, as they were when the program started; a `ToolSource`."""

    def __init__(self, found: Sequence[tuple[McpClient, Tools]]) -> None:
        self._specs: list[ToolSpec] = []
        self.servers = [client for client, _ in found]
        self._clients: dict[str, tuple[McpClient, str]] = {}
        taken: set[str] = set()
        for client, tools in found:
            kept, warnings = mcp_messages.unique(tools, taken)
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
    runs = [
        partial(run_stdio, server, children) if isinstance(server, StdioServer) else partial(run_http, place_of(server))
        for server in servers.servers
    ]
    async with beside() as sessions:
        clients = [
            McpClient(server, partial(sessions.start, run)) for server, run in zip(servers.servers, runs, strict=True)
        ]
        yield McpTools(await _warm_up(clients))


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
