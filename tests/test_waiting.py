"""A fact that does not come fails the test in time, and with words about it."""

from __future__ import annotations

import pytest
import trio
from waiting import until, wait


def test_what_does_not_come_is_told() -> None:
    with pytest.raises(AssertionError, match="not so within 0 s: 3\nthe log"):
        wait(lambda: 3, lambda found: found == 4, within=0, told=lambda: "the log")
    assert wait(iter([None, "", "here"]).__next__) == "here"


async def test_what_does_not_come_is_told_in_trio(autojump_clock: trio.abc.Clock) -> None:
    async def look() -> int:
        return 3

    with pytest.raises(AssertionError, match="not so within 5 s: 3\nthe log"):
        await until(look, lambda found: found == 4, within=5, told=lambda: "the log")
    with pytest.raises(AssertionError, match="not so within 5 s: 3"):
        await until(look, lambda found: found == 4, within=5, changed=trio.sleep_forever)
    assert await until(iter([None, "", "here"]).__next__) == "here"
