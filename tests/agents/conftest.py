"""Runs against a real server with fake engines: the harness is that of tests/http."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "http"))

from http_harness import OpenServer, open_appliance


@pytest.fixture
def open_server(fake_llama_server: tuple[str, ...], fake_model: Path) -> OpenServer:
    return partial(open_appliance, fake_llama_server, fake_model)
