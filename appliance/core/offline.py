"""``serve --offline``: the settings that name other machines, and the hosts that are this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from appliance.core.config.mcp_servers import HttpServer
from appliance.core.config.types import Config
from appliance.core.rpc_workers import split_endpoint, workers_named
from appliance.core.settings import ToolSettings, is_loopback
from appliance.errors import UsageError

SSH = "ssh:"
"""The beginning of a place for tools on another machine."""


def leaves(host: str) -> bool:
    """True if bytes sent to this address or name may leave the machine."""
    return bool(host) and host not in ("0.0.0.0", "::") and not is_loopback(host)


def asks_others(host: str) -> bool:
    """True if another machine may have to resolve this name. Addresses are not names."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return leaves(host)
    return False


def refuse_outside(config: Config | None, tools: ToolSettings, engine_args: Sequence[str] = ()) -> None:
    """Raise UsageError for the first setting that would have the program connect to another machine."""
    workers = [("a worker (--rpc)", split_endpoint(worker)[0]) for worker in workers_named(engine_args)]
    for setting, host in (*_of_config(config or Config()), *_of_tools(tools), *workers):
        if leaves(host):
            raise UsageError(
                f"--offline: {setting} is on {host}, which may be another machine; take it out, name it by a loopback "
                "address, or start without --offline"
            )


def _of_config(config: Config) -> Iterator[tuple[str, str]]:
    for name, peer in config.peers.items():
        yield f"peer '{name}'", _host(peer.proxy)
    for name, model in config.models.items():
        yield f"the server of model '{name}' (proxy)", _host(model.proxy)
        for worker in model.rpc:
            yield f"a worker of model '{name}' (rpc)", split_endpoint(worker)[0]
    for keys in config.by_feature():
        for setting, url in keys.urls():
            yield setting, _host(url)


def _of_tools(tools: ToolSettings) -> Iterator[tuple[str, str]]:
    for server in tools.mcp.servers:
        if isinstance(server, HttpServer):
            yield f"MCP server '{server.name}'", _host(server.url)
    if tools.runtime.startswith(SSH):
        yield "the place of the tools (--tools-runtime)", tools.runtime.removeprefix(SSH).rpartition("@")[2]


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
