"""What the long tests share."""

from __future__ import annotations

import os
import random

import pytest

ONE, FEW, DEEP = 1, 3, 100


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    option = request.config.getoption
    return option("--kills") or (DEEP if option("--deep") else FEW if option("--all") else ONE)


@pytest.fixture
def chance() -> random.Random:
    """Another one each time: its seed is in the output of a test that fails."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return random.Random(seed)
