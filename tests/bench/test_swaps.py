"""The bench's measurements of swaps and starts work, on the fake engine; what they find is not judged here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from contestants import STARTER, serve
from measures import Plan, start
from processes import Failed
from swaps import BARE, LOADS, swaps, table

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the bench runs on POSIX systems")


def test_every_way_to_a_first_token_is_measured_and_told(fake_engine: Path, tmp_path: Path) -> None:
    found = swaps([str(fake_engine)], str(fake_engine), 1, tmp_path)
    assert {BARE, *LOADS} < found.keys()
    assert all(0 < took.best <= took.median <= took.worst for took in found.values())
    lines = table(found)
    assert len(lines) == len(found) + 1
    assert lines[1].split()[:2] == ["bare", "engine,"]


def test_an_engine_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"one answered 500.*failed to start: exit status 1"):
        swaps(["/bin/false"], "/bin/false", 1, tmp_path)


def test_a_start_is_timed_and_weighed_before_and_after_the_first_question(fake_engine: Path, tmp_path: Path) -> None:
    plan = Plan(rounds=1, seconds=1, starts=1, swaps=1, pairs=1)
    found = start(lambda port: serve(port, str(fake_engine), {"one": STARTER}), plan, tmp_path)
    assert 0 < found.listening <= found.answering
    assert 10 < found.rss_unasked <= found.rss < 200
