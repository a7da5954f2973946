"""The table of docs/dialects.md is the one of the code."""

from __future__ import annotations

from pathlib import Path

from appliance.features.anthropic.core.members import table

PAGE = Path(__file__).parents[3] / "docs" / "dialects.md"


def test_the_page_has_the_fate_of_each_member() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Anthropic's Messages\n")[2]
    rows = section.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert rows == [f"| {member} | {fate} | {why} |" for member, fate, why in table()]
