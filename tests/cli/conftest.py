"""A hub for the command line, and servers in this process for it to ask."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from hub_process import FakeHub
from serving import serve, two_sizes

__all__ = ["serve"]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file that may be named as a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Generator[FakeHub]:
    """A hub with two sizes of a model; no two parts of the larger one are alike."""
    with two_sizes(tmp_path, monkeypatch) as running:
        yield running
