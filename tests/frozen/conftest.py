"""The frozen program under test: a copy of it, and a server of that."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from frozen_harness import DIST, SUFFIX, Server, bare_environment


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program under another name and in another place, which a user may well choose."""
    if not DIST.is_dir():
        pytest.fail(f"{DIST} is missing; 'python3 bootstrap.py freeze' makes it")
    moved = tmp_path_factory.mktemp("elsewhere") / "my apps" / "appliance (1)"
    shutil.copytree(DIST, moved, symlinks=True)
    return moved / f"llama-appliance{SUFFIX}"


@pytest.fixture
def server(program: Path, tmp_path: Path) -> Generator[Server]:
    with Server(program, tmp_path, bare_environment()) as running:
        yield running
