"""The numbers of `.ci/layout.py` only become smaller, and each planned feature is still there to be moved."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = re.compile(r"^(FROM_KERNEL|BETWEEN) = (\d+)$", re.MULTILINE)


def before(commit: str) -> dict[str, int]:
    """The numbers of a commit; none where it, or the file in it, is not here."""
    words = ["git", "show", f"{commit}:.ci/layout.py"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return {name: int(number) for name, number in NUMBERS.findall(told.stdout)}


@pytest.mark.needs("git")
def test_the_exceptions_do_not_become_more() -> None:
    now = dict(NUMBERS.findall((ROOT / ".ci" / "layout.py").read_text("utf-8")))
    assert len(now) == 2
    for commit in ("HEAD", "HEAD~1"):
        for name, number in before(commit).items():
            assert int(now[name]) <= number, f"{name} was {number} in {commit}"


def test_every_pattern_still_means_a_module() -> None:
    layout = runpy.run_path(str(ROOT / ".ci" / "layout.py"))
    modules = grimp.build_graph("appliance").modules
    fits = layout["fnmatchcase"]
    for feature, patterns in layout["PLANNED"].items():
        for pattern in patterns.split():
            assert any(fits(each.partition(".")[2], pattern) for each in modules), f"{feature}: {pattern}"
