"""The table of docs/messages.md is the one of the code."""

from __future__ import annotations

from pathlib import Path

from appliance.features.anthropic.core.members import table

PAGE = Path(__file__).parents[3] / "docs" / "messages.md"


def test_the_page_has_the_fate_of_each_member() -> None:
    rows = PAGE.read_text().partition("|---|---|---|\n")[2].splitlines()
    assert rows == [f"| {member} | {fate} | {why} |" for member, fate, why in table()]
