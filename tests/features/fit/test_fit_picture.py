"""The picture of memory: nothing is lost of a device, and nothing is there twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.memory import DeviceUse, GpuMemory
from appliance.features.fit.core.picture import device_of, share_of

sizes = st.integers(0, 1000)
uses = st.builds(DeviceUse, model=sizes, cache=sizes, compute=sizes, output=sizes)


@given(sizes, sizes, st.lists(st.tuples(sizes, st.just(DeviceUse()) | uses)))
def test_the_parts_of_a_device_are_what_it_has(total: int, used: int, running: list[tuple[int, DeviceUse]]) -> None:
    shares = tuple(share_of("a", "loaded", taken, planned) for taken, planned in running)
    device = device_of("gpu0", "a card", GpuMemory(min(used, total), total), 7, shares)
    assert (device.total, device.free, device.budget) == (total, total - min(used, total), 7)
    assert device.other == max(0, min(used, total) - sum(taken for taken, _ in running))
    for share, (taken, planned) in zip(device.models, running, strict=True):
        parts = (share.weights, share.context, share.compute, share.rest)
        assert min(parts) >= 0
        assert sum(parts) == share.total == taken
        assert share.weights <= planned.model, "no part is made up"
        assert share.context <= planned.cache
        assert share.rest == max(0, taken - planned.total)
