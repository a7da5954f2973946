"""Real MCP servers behind real sessions, in a world that is checked to be empty afterwards."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from leftovers import is_alive
from waiting import until

from appliance.core.config.mcp_servers import McpServers, parse_mcp_servers
from appliance.core.tools.box import ToolContext, ToolOutcome
from appliance.features.tools.mcp_client import McpTools, open_mcp
from appliance.platform.children import open_children

FAKES = Path(__file__).parents[2] / "fakes"
FAKE = FAKES / "mcp_server.py"
PATIENCE = 60.0


def entry(*flags: str, **more: object) -> dict[str, object]:
    return {"command": sys.executable, "args": [str(FAKE), *flags], **more}


def servers_of(**entries: object) -> McpServers:
    return parse_mcp_servers(json.dumps({"mcpServers": entries}), "the test")


@asynccontextmanager
async def opened(**entries: object) -> AsyncGenerator[McpTools]:
    """The tools of these servers."""
    with trio.fail_after(PATIENCE):
        async with open_children() as children, open_mcp(servers_of(**entries), children) as tools:
            yield tools


async def use(tools: McpTools, name: str, **arguments: object) -> ToolOutcome:
    return await tools.call(name, json.dumps(arguments).encode(), ToolContext())


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text("utf-8").split()] if file.exists() else []


def living(file: Path) -> list[int]:
    """Those processes in the file that are alive."""
    return [pid for pid in pids(file) if is_alive(pid)]


async def until_asked(log: Path, words: str) -> None:
    """Until a server that keeps a log has been told these words."""
    await until(lambda: log.exists() and words in log.read_text("utf-8"))


async def until_gone(file: Path) -> None:
    await until(lambda: not living(file))


HTTP_FAKE = FAKES / "mcp_http_server.py"


class HttpFake:
    """A running server over HTTP, and what it was asked."""

    def __init__(self, port: int, log: Path, path: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}{path}"
        self._log = log

    @property
    def requests(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    @property
    def methods(self) -> list[object]:
        """What was asked in JSON-RPC, and the HTTP method of what was no such message."""
        found: list[object] = []
        for each in self.requests:
            message = each["message"]
            found.append(message.get("method", "an answer") if isinstance(message, dict) else each["method"])
        return found


@asynccontextmanager
async def http_fake(log: Path, *flags: str, path: str = "/mcp", port: int = 0) -> AsyncGenerator[HttpFake]:
    argv = [sys.executable, str(HTTP_FAKE), "--log", str(log), "--path", path, "--port", str(port), *flags]
    process = await trio.lowlevel.open_process(argv, stdout=-1)
    try:
        with trio.fail_after(PATIENCE):
            said = b""
            while not said.endswith(b"\n"):
                said += await process.stdout.receive_some()
        yield HttpFake(int(said), log, path)
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()
            await process.stdout.aclose()
