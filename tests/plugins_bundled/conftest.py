"""The program with its own plugins in front of scripted fakes or a real engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from plugged import OpenPlugged, open_plugged


@pytest.fixture
def plugged(fake_llama_server: tuple[str, ...], fake_model: Path, starter_model: Path, tmp_path: Path) -> OpenPlugged:
    """`open_plugged` with its folder, the fake engine and the starter model filled in."""
    return partial(open_plugged, tmp_path, fake_llama_server, fake_model, starter_model)
