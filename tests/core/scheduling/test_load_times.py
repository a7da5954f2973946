"""Expected waits: from measured loads alone, and never a figure where one of them is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.scheduling.waiting import LoadTimes

MODELS = st.sampled_from("abcde")
SECONDS = st.floats(0, 1000)


def measured(**loads: float) -> LoadTimes:
    times = LoadTimes()
    for model, seconds in loads.items():
        times.note(model, seconds)
    return times


def test_loads_in_turn_add_up_and_those_under_way_go_on_side_by_side():
    times = measured(a=4, b=6, c=10)
    assert times.expected(["a"], {}) == 4
    assert times.expected(["a"], {"a": 1}) == 3
    assert times.expected(["a"], {"a": 9}) == 0
    assert times.expected(["a", "b", "c"], {"a": 1, "b": 1}) == 15
    assert times.expected(["a", "x"], {}) is None
    assert times.expected([], {}) == 0


def test_a_measurement_counts_as_much_as_all_before_it():
    times = measured(a=8)
    times.note("a", 4)
    assert times.expected(["a"], {}) == 6
    times.forget(["a", "x"])
    assert times.expected(["a"], {}) is None


@given(st.dictionaries(MODELS, SECONDS), st.lists(MODELS, unique=True), st.dictionaries(MODELS, SECONDS))
def test_a_wait_is_bounded_by_the_loads(loads: dict[str, float], awaited: list[str], under_way: dict[str, float]):
    expected = measured(**loads).expected(awaited, under_way)
    if not {*awaited} <= loads.keys():
        assert expected is None
        return
    assert expected is not None
    assert 0 <= expected <= sum(loads[model] for model in awaited) + 1e-6
    assert expected >= max((loads[model] for model in awaited if model not in under_way), default=0)
    longer = measured(**{model: seconds + 1 for model, seconds in loads.items()}).expected(awaited, under_way)
    assert longer is not None
    assert longer >= expected
