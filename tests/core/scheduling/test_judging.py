"""Which requests are taken for the reason why processes died, and how long a process that has work may be silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.additions import HangsConfig
from appliance.core.scheduling.judging import MOST, REMEMBERED, Silence, Suspects, patience

FLOOR = 64
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


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 2 * FLOOR)), max_size=30))
def test_drops_are_silence(came: list[tuple[int, int]]) -> None:
    """It lasts since the last moment at which a whole floor had come; fewer bytes are added up and never forgotten."""
    silence = Silence(0, 0)
    now = passed = alive_at = counted = 0
    for seconds, more in came:
        now, passed = now + seconds, passed + more
        if passed - counted >= FLOOR:
            alive_at, counted = now, passed
        assert silence.look(passed, now, FLOOR) == now - alive_at


def test_an_answered_question_ends_a_silence() -> None:
    silence = Silence(0, 0)
    assert silence.look(FLOOR - 1, 5, FLOOR) == 5
    silence.on_progress(FLOOR - 1, 6)
    assert silence.look(2 * FLOOR - 2, 8, FLOOR) == 2
    assert silence.look(2 * FLOOR - 1, 9, FLOOR) == 0


def test_it_may_last_less_while_another_model_waits() -> None:
    hangs = HangsConfig(after=60, awaited=20)
    assert [patience(hangs, awaited=awaited) for awaited in (False, True)] == [60, 20]
    assert patience(HangsConfig(after=5, awaited=20), awaited=True) == 5
