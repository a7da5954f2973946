"""Ports that processes share, and the settings of web pages, with real sockets."""

from __future__ import annotations

import socket

import pytest
from http_harness import OpenServer

from appliance.errors import UsageError
from appliance.http.bytes.listening import open_listeners


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system does not let processes share a port")
async def test_a_port_is_shared_by_those_who_all_ask_for_it() -> None:
    (first,) = await open_listeners([("127.0.0.1", 0)], reuse_port=True)
    place = first.bound
    try:
        assert not isinstance(place, tuple) or place[1] > 0
        (second,) = await open_listeners([place], reuse_port=True)
        second.close()
        with pytest.raises(UsageError, match="listens there already"):
            await open_listeners([place])
    finally:
        first.close()
    with pytest.raises(UsageError, match="this machine has no such address"):
        await open_listeners([("203.0.113.7", 0)], reuse_port=True)


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system does not let processes share a port")
async def test_two_servers_answer_on_one_port(open_server: OpenServer) -> None:
    async with open_server(reuse_port=True, ui_settings=b'{"theme":"dark"}') as server:
        place = (("127.0.0.1", server.port),)
        async with open_server(reuse_port=True, ui_settings=b'{"theme":"dark"}', listen=place) as other:
            assert other.port == server.port
            for _ in range(20):
                answer = await server.ask("GET", "/props")
                assert answer.json["ui_settings"] == {"theme": "dark"}
                assert answer.json["cors_proxy_enabled"] is False
