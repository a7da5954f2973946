"""Small HTTP servers, ended with the test."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from peers_harness import SmallServer, StartServer


@pytest.fixture
def start_server() -> Generator[StartServer]:
    servers: list[SmallServer] = []

    def start(*options: str) -> SmallServer:
        servers.append(SmallServer(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
