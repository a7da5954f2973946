"""Tools on the command line: the same flags for ``serve`` and for the stand-in for llama-server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from appliance.cli.values import text_of
from appliance.core.config.types import Config
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.mcp.config import McpServers, parse_mcp_servers, read_mcp_servers
from appliance.core.settings import ToolSettings
from appliance.core.tools.specs import ALL, NAMES, chosen_tools
from appliance.platform.console import say

TOOL_FLAGS = (
    "--tools", "--tools-runtime", "--tools-root", "--agent", "--mcp-servers-config", "--mcp-servers-json",
)  # fmt: skip
"""llama-server's options, and ``--tools-root``. No model process gets them."""
T = TypeVar("T")


class ToolOptions(Struct, frozen=True, kw_only=True):
    """The options given; texts are empty if the option was not given."""

    tools: str = ""
    agent: bool = False
    runtime: str = ""
    root: str = ""
    mcp_file: str = ""
    mcp_json: str = ""

    def settings(self, config: Config | None = None) -> ToolSettings:
        """Return the options' values, or the configuration's where an option is missing. Raises UsageError."""
        mcp = _mcp_servers(self.mcp_file, self.mcp_json)
        words = [*self.tools.split(","), *([ALL] if self.agent else [])]
        runtime, root = self.runtime, self.root
        if config is not None:
            mcp = mcp.joined(read_mcp_servers(config.mcp_servers, "the configuration"))
            words = words if any(word.strip() for word in words) else config.tools.enable
            runtime, root = runtime or config.tools.runtime, root or config.tools.root
        for warning in mcp.warnings:
            say(warning)
        return chosen_tools(words, runtime=runtime, root=root, mcp=mcp)


def tool_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options; the command gets them as ``tool_choice``."""

    @click.option(
        "--tools",
        default="",
        metavar="NAMES",
        help=f"Let clients and models use tools on this machine: {', '.join(NAMES)}, or {ALL}.",
    )
    @click.option("--agent", is_flag=True, help="The same as --tools all --cors-proxy.")
    @click.option(
        "--tools-runtime",
        default="",
        metavar="RUNTIME",
        help="Where the tools run: docker:IMAGE, docker-container:ID (podman as well) or ssh:HOST.",
    )
    @click.option("--tools-root", default="", metavar="DIR", help="A folder that the tools cannot leave.")
    @click.option(
        "--mcp-servers-config", default="", metavar="FILE", help="MCP servers, in the format of desktop clients."
    )
    @click.option("--mcp-servers-json", default="", metavar="JSON", help="The same, as text.")
    @functools.wraps(command)
    def with_options(
        *args: object,
        tools: str,
        agent: bool,
        tools_runtime: str,
        tools_root: str,
        mcp_servers_config: str,
        mcp_servers_json: str,
        **kwargs: object,
    ) -> T:
        choice = ToolOptions(
            tools=tools,
            agent=agent,
            runtime=tools_runtime,
            root=tools_root,
            mcp_file=mcp_servers_config,
            mcp_json=mcp_servers_json,
        )
        return command(*args, tool_choice=choice, **kwargs)

    return with_options


def tools_of_options(options: Sequence[Option]) -> ToolSettings:
    """Return the meaning of llama-server's options. Raises UsageError."""
    found = {name: flags.last(options, name) for name in TOOL_FLAGS}
    said = {name: "".join(option.values) for name, option in found.items() if option is not None and option.on}
    return ToolOptions(
        tools=said.get("--tools", ""),
        agent="--agent" in said,
        runtime=said.get("--tools-runtime", ""),
        root=said.get("--tools-root", ""),
        mcp_file=said.get("--mcp-servers-config", ""),
        mcp_json=said.get("--mcp-servers-json", ""),
    ).settings()


def opens_pages(options: Sequence[Option]) -> bool:
    """True if pages can do more here than chat, so that only pages of this machine are accepted."""
    agent = flags.last(options, "--agent")
    named = any(flags.last(options, name) for name in ("--tools", "--mcp-servers-config", "--mcp-servers-json"))
    return named or (agent is not None and agent.on)


def _mcp_servers(file: str, text: str) -> McpServers:
    servers = McpServers()
    if file:
        servers = parse_mcp_servers(text_of("--mcp-servers-config", Path(file)), f"--mcp-servers-config {file}")
    return servers.joined(parse_mcp_servers(text, "--mcp-servers-json")) if text else servers
