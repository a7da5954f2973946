"""Where a group limits memory, what `ls` calls too large is refused, and nothing else is."""

from __future__ import annotations

from hollow_models import dense, shape_of
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.memory import RAM
from appliance.core.models.shape import Shape
from appliance.features.fit.core.budget import reserve_in, why_refused
from appliance.features.fit.core.options import asked_of
from appliance.features.fit.core.plan import plan

MIB = 1 << 20
SHAPES = tuple(shape_of(dense(layers=layers, width=64 * layers)) for layers in (1, 8, 24))


@given(st.sampled_from(SHAPES), st.integers(1, 16 << 10), st.integers(0, 100), st.booleans())
def test_a_plan_is_refused_where_it_says_that_the_model_will_not_fit(
    shape: Shape, limit: int, percent: int, gpu: bool
) -> None:
    limit *= MIB
    left = limit * percent // 100
    room = {RAM: left, **({"gpu0": 24 << 30} if gpu else {})}
    found = plan(shape, room, asked_of((), gpus=("gpu0",) if gpu else ()), reserve=reserve_in(limit))
    why = why_refused(found, left, limit)
    assert bool(why) == (found.verdict == "no")
    assert not why or all(f"{size // MIB} MiB" in why for size in (limit, left, reserve_in(limit)))
    assert bool(why_refused(found.memory[RAM].total, left, limit)) >= bool(why), "the same by its size alone"
