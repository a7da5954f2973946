"""The options of ``serve`` for its MCP server, and their safety conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click
from msgspec import structs

from appliance.core.config.types import Config
from appliance.core.settings import KEY_VARIABLE, HttpSettings, UnixSocket, is_loopback
from appliance.errors import UsageError

T = TypeVar("T")


def mcp_server_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--mcp-server`` and ``--mcp-server-tools``, as parameters of these names."""
    command = click.option(
        "--mcp-server-tools",
        multiple=True,
        metavar="TOOL",
        help="A tool of --tools or --mcp-servers-config that MCP clients may also use, or mcp:SERVER, or '*'.",
    )(command)
    return click.option("--mcp-server", is_flag=True, help="Offer the models to MCP clients, at /mcp. Needs a key.")(
        command
    )


def with_mcp_server(
    http: HttpSettings, config: Config | None, enabled: bool, tools: tuple[str, ...], *, allow_unauthenticated: bool
) -> HttpSettings:
    """Return the MCP server's settings from the command line or the configuration.

    Raises UsageError if everybody could use what a key should protect.
    """
    configured = (config or Config()).mcp_server
    tools = (*tools, *configured.tools)
    if not (enabled or configured.enabled):
        if tools:
            raise UsageError("--mcp-server-tools (mcpServer.tools) needs --mcp-server (mcpServer.enabled); add that")
        return http
    has_key = bool(http.api_keys or (config is not None and any(config.api_keys)))
    if not has_key and not allow_unauthenticated:
        raise UsageError(
            f"--mcp-server needs a key, since its clients can run models and tools: add --api-key KEY (or "
            f"{KEY_VARIABLE}), or --allow-unauthenticated if every program on this machine may use it"
        )
    if not has_key and not all(isinstance(at, UnixSocket) or is_loopback(at[0]) for at in http.listen):
        raise UsageError(
            "--mcp-server without a key works only on this machine: add --api-key KEY, or listen on 127.0.0.1 only"
        )
    return structs.replace(http, mcp_server=True, mcp_server_tools=tools, mcp_server_open=not has_key)
