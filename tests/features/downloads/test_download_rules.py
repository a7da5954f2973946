"""The speed that is told of a download."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.downloads.rules import PACE_STEP, PACE_WINDOW, DownloadPace


@given(rate=st.integers(1, 10**10), before=st.integers(0, 10**10), steps=st.lists(st.floats(0.01, 3), min_size=60))
def test_the_pace_is_that_of_a_steady_download(rate: int, before: int, steps: list[float]) -> None:
    pace, start = DownloadPace(), 100.0
    now = start
    for step in steps:
        now += step
        pace.see(before + round(rate * (now - start)), now)
    found = pace.rate(before + round(rate * (now - start)), now)
    if now - start > 2 * PACE_STEP + 3:
        assert found == pytest.approx(rate, rel=0.01, abs=4)
    assert pace.rate(before + round(rate * (now - start)), now + 2 * PACE_WINDOW) == pytest.approx(0, abs=rate * 0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 20)), max_size=40))
def test_a_pace_is_never_negative_whatever_comes_and_goes(steps: list[tuple[int, float]]) -> None:
    pace, now = DownloadPace(), 0.0
    for done, idle in steps:
        now += idle
        pace.see(done, now)
        assert (pace.rate(done, now) or 0) >= 0
