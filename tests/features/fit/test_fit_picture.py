"""The picture of memory: nothing is lost of a device, and nothing is there twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.memory import DeviceUse, GpuMemory
from appliance.features.fit.core.picture import ModelMemory, picture

DEVICES = ("ram", "gpu0", "gpu1")
sizes = st.integers(0, 1000)
by_device = st.dictionaries(st.sampled_from(DEVICES), sizes)
uses = st.builds(DeviceUse, model=sizes, cache=sizes, compute=sizes, output=sizes)
memories = st.builds(lambda total, used: GpuMemory(min(used, total), total), sizes, sizes)
models = st.builds(
    ModelMemory,
    model=st.sampled_from("abcd"),
    state=st.just("loaded"),
    taken=by_device,
    planned=st.dictionaries(st.sampled_from(DEVICES), uses),
)


@given(st.dictionaries(st.sampled_from(DEVICES), memories), by_device, st.lists(models, unique_by=lambda m: m.model))
def test_the_parts_of_each_device_are_what_it_has(
    devices: dict[str, GpuMemory], budgets: dict[str, int], running: list[ModelMemory]
) -> None:
    shown = picture(devices, {"gpu0": "a card"}, budgets, running)
    assert [one.device for one in shown] == list(devices)
    for one in shown:
        memory = devices[one.device]
        taken = {model.model: size for model in running if (size := model.taken.get(one.device, 0))}
        assert {share.model: share.total for share in one.models} == taken
        assert one.budget == budgets.get(one.device)
        assert one.free == memory.total - memory.used
        assert one.other == max(0, memory.used - sum(taken.values()))
        for share in one.models:
            parts = (share.weights, share.context, share.compute, share.rest)
            assert min(parts) >= 0
            assert sum(parts) == share.total
            planned = next(each.planned for each in running if each.model == share.model).get(one.device)
            assert planned is not None or share.rest == share.total, "no part is made up"
