"""A hub for the command line, and servers in this process for it to ask."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from gguf_files import write_big, write_model
from hub_process import FakeHub, fake_hub
from serving import serve

__all__ = ["serve"]
HUB_SIZE = 24 << 20
"""Bytes of the larger model's weights."""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file that may be named as a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Generator[FakeHub]:
    """A hub with two sizes of a model; no two parts of the larger one are alike."""
    folder = tmp_path / "hub" / "acme" / "tiny-GGUF"
    write_big(folder / "tiny-Q8_0.gguf", HUB_SIZE)
    write_model(folder / "tiny-F16.gguf", weights=1000)
    with fake_hub(tmp_path / "hub") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
