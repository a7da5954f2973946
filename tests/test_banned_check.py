"""The check of what is banned finds a test that waits for a fixed time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("banned", Path(__file__).parents[1] / ".ci" / "banned.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BANNED = loaded()
DO = "sleep"  # so that these lines are none themselves


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"time.{DO}(0.3)", True),
        (f"await trio.{DO}(1.5 * keeps)", True),
        (f"await trio.{DO}(TERM / 5)", True),
        (f"shell('{DO} 2; true')", True),
        (f"time.{DO}(0.2)", False),
        (f"await trio.{DO}(pause)", False),
        (f"time.{DO}(300)", False),
        (f"time.{DO}(2)  # the child ends it", False),
    ],
)
def test_a_long_sleep_needs_a_comment(line: str, found: bool) -> None:
    test = f"async def test_it():\n    {line}\n"
    assert [number for number, _ in BANNED.unexplained_sleeps(test)] == [2] * found
    assert not list(BANNED.unexplained_sleeps(test.replace("    ", "    # said\n    ", 1)))
    assert not list(BANNED.unexplained_sleeps(test.replace("()", "(autojump_clock)", 1)))
