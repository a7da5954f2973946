"""A pair that failed waits longer each time, and never for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.features.engines.core.standing import (
    BACK_OFF,
    CLOCK_SLACK,
    EASED,
    FORGOTTEN,
    Probation,
    SeatFailed,
    after_failure,
    eased,
)

DAY = 86400.0
times = st.floats(0, 4e9)


def failed(before: Probation | None, now: float, digest: str = "d", why: str = "it died") -> Probation:
    return after_failure(
        before, SeatFailed(build="b", seat="s", digest=digest, model="m", why=why, at=now, others=True)
    )


@given(times, st.lists(st.floats(0, 30 * DAY), max_size=12))
def test_it_is_tried_again_within_a_day_however_often_it_has_failed(start: float, waits: list[float]) -> None:
    one, now = failed(None, start), start
    for wait in waits:
        now += wait
        one = failed(one, now)
        assert one.holds(now)
        assert not one.holds(now + DAY)
        assert 1 <= one.failures <= len(waits) + 1
        assert (one.seat, one.digest, one.model, one.why, one.since) == ("s", "d", "m", "it died", now)


@given(times, st.integers(1, 12))
def test_failures_in_a_row_wait_longer_each_time_up_to_a_day(start: float, times_failed: int) -> None:
    one, now, waits = None, start, list[float]()
    for _ in range(times_failed):
        one = failed(one, now)
        waits.append(round(one.until - now, 3))
        now = one.until + 1
    assert waits == sorted(waits)
    assert one.failures == times_failed
    assert max(waits) <= max(BACK_OFF)


@given(times, times)
def test_a_clock_that_was_wrong_makes_no_pair_wait_longer(wrong: float, now: float) -> None:
    one = failed(None, wrong)
    if one.holds(now):
        assert one.until - now <= BACK_OFF[0] + CLOCK_SLACK


@given(times, st.floats(FORGOTTEN, 10 * FORGOTTEN, exclude_min=True))
def test_after_a_week_without_failures_it_starts_anew(start: float, later: float) -> None:
    again = failed(failed(None, start), start + 1)
    assert again.failures == 2
    assert failed(again, again.until + later).failures == 1


@given(times)
def test_another_build_starts_anew(start: float) -> None:
    again = failed(failed(failed(None, start), start), start)
    assert failed(again, start, digest="another").failures == 1
    assert failed(again, start).failures == 4


@given(times, st.lists(st.floats(0, 20 * DAY), max_size=8))
def test_only_what_counts_for_the_next_failure_is_kept(now: float, ages: list[float]) -> None:
    for one in [failed(None, now - age) for age in ages]:
        assert one.counts(now) == (failed(one, now).failures == 2)


@given(times, st.integers(1, 12))
def test_a_seat_that_is_proven_again_waits_minutes_at_most(start: float, times_failed: int) -> None:
    one = None
    for _ in range(times_failed):
        one = failed(one, start)
    trusted = eased(one)
    assert trusted.until == min(one.until, start + EASED)
    assert eased(trusted) == trusted
    assert failed(trusted, start).failures == times_failed + 1
