"""A server that other machines can reach needs a key."""

from __future__ import annotations

import pytest

from appliance.core.config.mcp_servers import McpServers, StdioServer
from appliance.core.offline import leaves
from appliance.core.settings import AlsoListen, HttpSettings, ToolSettings, UnixSocket, is_loopback, refuse_open_door
from appliance.errors import UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    refuse_open_door(HttpSettings(listen=((host, 1),)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.local", "localhost.evil.example"])
def test_listening_for_others_needs_a_key(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError, match="--api-key KEY"):
        refuse_open_door(HttpSettings(listen=(("127.0.0.1", 1), (host, 1))))
    with pytest.raises(UsageError, match="--api-key KEY"):
        refuse_open_door(HttpSettings(also=(AlsoListen((host, 1), "--also-listen"),)))
    refuse_open_door(HttpSettings(listen=((host, 1),), api_keys=("k",)))


def test_tools_of_either_kind_are_tools() -> None:
    servers = McpServers(servers=(StdioServer(name="s", command="run"),))
    assert not ToolSettings().enabled
    assert ToolSettings(builtin=("get_info",)).enabled
    assert ToolSettings(mcp=servers).enabled


def test_a_file_is_no_open_door() -> None:
    refuse_open_door(HttpSettings(listen=(UnixSocket("/run/x.sock"),)))


def test_only_an_address_elsewhere_is_left_for():
    assert [leaves(host) for host in ("", "0.0.0.0", "::", "localhost", "10.0.0.1", "a.b")] == [False] * 4 + [True] * 2
