"""The server under test, opened by `open_server(...)`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from http_harness import OpenServer, open_appliance


@pytest.fixture
def open_server(fake_llama_server: tuple[str, ...], fake_model: Path) -> OpenServer:
    return partial(open_appliance, fake_llama_server, fake_model)
