"""The program as most of these tests want it: with the fake engine and as it comes, or with a configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from http_harness import Appliance, Client, OpenServer
from swap_harness import Configure, configure


@pytest.fixture
async def server(open_server: OpenServer) -> AsyncGenerator[Appliance]:
    """The program without any setting, for a test that only asks it."""
    async with open_server() as server:
        yield server


@pytest.fixture
async def client(server: Appliance) -> AsyncGenerator[Client]:
    """A connection to that program."""
    async with server.connect() as client:
        yield client


@pytest.fixture
def configured(tmp_path: Path, fake_llama_server: tuple[str, ...], fake_model: Path) -> Configure:
    """Write the configuration file of a test."""
    return partial(configure, tmp_path / "config.yaml", fake_llama_server, fake_model)
