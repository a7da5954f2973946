"""The server of most tests over HTTP, and what others are made of: configurations, and a hub of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from functools import partial
from pathlib import Path

import pytest
from gguf_files import write_model
from http_harness import Appliance, Client, OpenServer
from hub_process import FakeHub, fake_hub
from reload_harness import File
from swap_harness import Configure, configure

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.hub_address import HubAccess
from appliance.store import partial_file

HUB_MODEL = "acme/tiny-GGUF/tiny-Q8_0.gguf"
"""The file that `hub` has; a MiB of weights."""


@pytest.fixture
async def client(server: Appliance) -> AsyncGenerator[Client]:
    """Connect to that server."""
    async with server.connect() as connected:
        yield connected


@pytest.fixture
def configured(tmp_path: Path, fake_llama_server: tuple[str, ...], fake_model: Path) -> Configure:
    """Write the configuration file of a test."""
    return partial(configure, tmp_path / "config.yaml", fake_llama_server, fake_model)


@pytest.fixture
def file(tmp_path: Path, fake_llama_server: tuple[str, ...], fake_model: Path) -> File:
    """Write the configuration file of a test, and read it again."""
    return File(tmp_path / "config.yaml", fake_llama_server, fake_model)


@pytest.fixture
async def served(open_server: OpenServer, downloads: DownloadSettings) -> AsyncGenerator[Appliance]:
    """Serve what is downloaded from `hub`."""
    async with open_server(downloads=downloads) as running:
        yield running


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    """Run a hub with one model, of which no two parts are alike."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.setattr(partial_file, "CHUNK", 1 << 18)
    path = write_model(tmp_path / "hub" / HUB_MODEL, weights=1 << 18)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with fake_hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def downloads(hub: FakeHub, tmp_path: Path) -> DownloadSettings:
    """Download from `hub`; what is in the folder ``models`` is served as well."""
    (tmp_path / "models").mkdir()
    return DownloadSettings(
        cache=tmp_path / "cache",
        models_dir=tmp_path / "models",
        hub=HubAccess(endpoint=hub.url),
        spare=0,
        retry_delay=lambda attempt, asked: 0.01,
    )
