"""The picture of memory: nothing is lost of a model's share, and nothing is there twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.memory import DeviceUse
from appliance.features.fit.core.picture import share_of

sizes = st.integers(0, 1000)
uses = st.builds(DeviceUse, model=sizes, cache=sizes, compute=sizes, output=sizes)


@given(sizes, st.just(DeviceUse()) | uses)
def test_the_parts_of_a_share_are_what_the_model_takes(taken: int, planned: DeviceUse) -> None:
    share = share_of("a", "loaded", taken, planned)
    parts = (share.weights, share.context, share.compute, share.rest)
    assert min(parts) >= 0
    assert sum(parts) == share.total == taken
    assert share.weights <= planned.model, "no part is made up"
    assert share.context <= planned.cache
    assert share.rest == max(0, taken - planned.total)
