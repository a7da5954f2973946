"""Numbers and times of a request are read, or refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.parameters import read_time, read_whole
from appliance.errors import BadRequest

NUMBERS = st.integers() | st.sampled_from([10**17, 10**18, 1 << 63, -1, 0])


@given(NUMBERS.map(str) | st.text(max_size=6) | st.sampled_from(["²", "٣", "1_0", "+1", " 1", "1" * 23, "9" * 5000]))
def test_a_whole_number_fits_into_the_store_or_is_refused_by_name(text: str) -> None:
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        assert read_whole(text, "since") == int(text) < 1 << 63
        return
    with pytest.raises(BadRequest, match=r"^since must be a whole number of at least 0, not .{0,100}$") as refused:
        read_whole(text, "since")
    assert refused.value.param == "since"


def test_bounds_are_part_of_the_refusal() -> None:
    assert read_whole("999", "limit", 1, 999) == 999
    for wrong in ("0", "1000", "x"):
        with pytest.raises(BadRequest, match="limit must be a whole number from 1 to 999, not"):
            read_whole(wrong, "limit", 1, 999)


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES | st.just(UTC)))
def test_a_time_is_the_same_moment_or_refused_by_name(when: datetime) -> None:
    try:
        moment = when.astimezone(UTC)
    except OverflowError:
        with pytest.raises(BadRequest, match=r"^after must be an RFC 3339 time"):
            read_time(when.isoformat(), "after")
    else:
        assert read_time(when.isoformat(), "after") == moment
