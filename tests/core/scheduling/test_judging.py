"""Which requests are taken for the reason why processes died."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.additions import HangsConfig
from appliance.core.scheduling.judging import MOST, REMEMBERED, Silence, Suspects, patience

SEATS = st.sampled_from(["gpu0", "gpu1"])
DEATHS = st.tuples(st.sets(st.integers(0, 3), min_size=1), SEATS, st.floats(0, REMEMBERED / 2))


@given(st.lists(DEATHS | st.integers(0, 3), max_size=12))
def test_two_deaths_convict_and_one_alone_among_them_refuses(history: list[tuple[set[int], str, float] | int]) -> None:
    """Only the deaths since its last answer count, and for refusing only those that are remembered."""
    suspects, now = Suspects(), 0.0
    deaths: dict[int, list[tuple[float, str, bool]]] = {}
    for event in history:
        if isinstance(event, int):
            suspects.answered(event)
            deaths.pop(event, None)
            continue
        requests, seat, passed = event
        now += passed
        cleared = suspects.died(requests, seat, now)
        for request in requests:
            before = [one for one in deaths.get(request, []) if now < one[0] + REMEMBERED]
            deaths[request] = [*before, (now, seat, len(requests) == 1)]
        refused = {request for request in deaths if suspects.refuses(request, now)}
        assert cleared == {one: [on for _, on, _ in deaths[one]] for one in requests & refused}
        for request in range(4):
            fresh = [one for one in deaths.get(request, []) if now < one[0] + REMEMBERED]
            assert suspects.convicted(request) == (len(deaths.get(request, [])) >= 2)
            assert (request in refused) == (len(fresh) >= 2 and any(alone for _, _, alone in fresh))
        assert bool(suspects) == bool(deaths)


def test_what_is_remembered_has_an_end_in_time_and_number() -> None:
    suspects = Suspects()
    suspects.died([0], "gpu0", 0.0)
    suspects.died([0], "gpu0", 1.0)
    assert suspects.refuses(0, REMEMBERED - 0.5)
    assert not suspects.refuses(0, REMEMBERED)
    for request in range(1, MOST + 1):
        suspects.died([request], "gpu0", 1.0)
    assert not suspects.convicted(0), "the one not seen for the longest time is forgotten"
    suspects.died([1], "gpu0", 1.0)
    assert suspects.convicted(1)


def test_silence_ends_with_a_whole_floor_and_not_with_a_drip() -> None:
    silence = Silence(100, 10.0)
    assert [silence.look(passed, now, 10) for passed, now in ((100, 11), (109, 12), (110, 13), (119, 15))] == [
        1,
        2,
        0,
        2,
    ]
    silence.on_progress(119, 15.5)
    assert [silence.look(passed, now, 10) for passed, now in ((128, 16), (129, 17), (129, 18))] == [0.5, 0, 1]
    assert silence.began == 10.0


@pytest.mark.parametrize(("after", "awaited"), [(60, 20), (20, 60)])
def test_patience_is_shorter_where_another_model_waits(after: int, awaited: int) -> None:
    hangs = HangsConfig(after=after, awaited=awaited)
    assert [patience(hangs, awaited=waits) for waits in (False, True)] == [after, 20]
