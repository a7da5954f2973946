"""What the tests with real processes share."""

from __future__ import annotations

from pathlib import Path

import pytest
from configured_harness import Fleets


@pytest.fixture
def fleets(tmp_path: Path) -> Fleets:
    return Fleets(tmp_path)
