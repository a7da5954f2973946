"""The bench's measurement of plugins works; what it finds is not judged here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from chain import FIRST, WHOLE, chain, table
from peers import prepare

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the bench runs on POSIX systems")


def test_requests_with_and_without_plugins_are_compared(tmp_path: Path) -> None:
    found = chain(prepare(tmp_path), 3)
    assert list(found) == [WHOLE, FIRST]
    assert all(added.plain > 0 and added.chained > 0 for added in found.values())
    lines = table(found)
    assert len(lines) == 3
    assert lines[1].split()[:2] == WHOLE.split()
