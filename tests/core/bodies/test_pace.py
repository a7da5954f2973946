"""The least rate of bodies and of answers to strangers, held to the sums that it stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.pace import LEAST_RATE, Pace

LIMIT = 30.0
STEPS = st.lists(
    st.tuples(st.floats(0.0, LIMIT), st.one_of(st.integers(0, 2000), st.integers(0, 100 << 20))), max_size=30
)


@given(STEPS)
def test_a_client_within_the_limit_has_had_the_rate_in_every_stretch_but_for_the_limit(
    steps: list[tuple[float, int]],
) -> None:
    pace, kept = Pace(), 0
    for seconds, size in steps:
        if pace.behind + seconds > LIMIT:
            break
        pace.passed(seconds, size)
        kept += 1
    for first in range(kept):
        for last in range(first, kept):
            stretch = steps[first : last + 1]
            waited, passed = sum(seconds for seconds, _ in stretch), sum(size for _, size in stretch[:-1])
            assert passed >= (waited - LIMIT) * LEAST_RATE - 1


@given(STEPS)
def test_a_client_that_keeps_the_rate_is_never_behind(steps: list[tuple[float, int]]) -> None:
    pace = Pace()
    for seconds, more in steps:
        pace.passed(seconds, int(seconds * LEAST_RATE) + 1 + more)
        assert pace.behind == 0.0
