"""``mcp``: an MCP server on standard input and output that forwards everything to a running appliance's ``/mcp``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from appliance.cli.mcp_relay import Relay
from appliance.cli.plan import AsyncCommand
from appliance.cli.remote import DEFAULT_URL, URL_VARIABLE, server_options
from appliance.core.config.types import Timeouts
from appliance.core.settings import KEY_VARIABLE
from appliance.platform.console import PROGRAM
from appliance.upstream.client import address_of

CONNECT_TIME = 10
NAME = "llama-appliance"


@click.command()
@server_options
@click.option("--print-config", is_flag=True, help="Print the entry for a desktop client's configuration, and exit.")
def mcp(url: str | None, api_key: str | None, print_config: bool) -> AsyncCommand | int:
    """Connect an MCP client, on standard input and output, to the models of a running server.

    The server must have been started with --mcp-server. Desktop clients start this command themselves; --print-config
    prints the entry for their configuration.

    \b
    Examples:
      llama-appliance serve --mcp-server --api-key "$KEY"
      llama-appliance mcp --api-key "$KEY" --print-config
    """
    where = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
    key = api_key.partition(",")[0].strip() if api_key else ""
    address = address_of(
        where, "--url" if url else URL_VARIABLE, api_key=key, timeouts=Timeouts(connect=CONNECT_TIME, response_header=0)
    )
    if print_config:
        click.echo(client_config(where, key))
        return 0
    return Relay(where, address).run


def client_config(url: str, key: str) -> str:
    """Return the entry for a desktop client's ``mcpServers``, as JSON. The key is kept out of the list of processes."""
    command, *words = own_command()
    entry: dict[str, object] = {"command": command, "args": [*words, "mcp", "--url", url]}
    if key:
        entry["env"] = {KEY_VARIABLE: key}
    return msgspec.json.format(msgspec.json.encode({"mcpServers": {NAME: entry}}), indent=2).decode()


def own_command() -> Sequence[str]:
    """Return the command with which another program starts this one, from any folder."""
    if getattr(sys, "frozen", False):
        return [sys.executable]
    beside = Path(sys.executable).with_name(PROGRAM + (".exe" if sys.platform == "win32" else ""))
    found = str(beside) if beside.is_file() else shutil.which(PROGRAM)
    return [found] if found else [sys.executable, "-m", "appliance"]
