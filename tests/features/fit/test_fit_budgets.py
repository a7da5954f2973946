"""Budgets: from a machine, and while a game has its GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.memory import GpuMemory, room_of
from appliance.features.fit.core.budget import budgets_of, squeezed

GIB = 1 << 30
MIB = 1 << 20


def gpu(total: int | None, free: int | None = None, *, integrated: bool | None = False) -> Gpu:
    return Gpu(vendor="nvidia", name="card", driver="nvidia", total=total, free=free, integrated=integrated)


def look(*gpus: Gpu, memory: int = 32 * GIB) -> MachineLook:
    return MachineLook(
        platform="linux-x64",
        system="Linux",
        environment="native",
        cpu="some",
        memory_total=memory,
        memory_available=memory // 2,
        gpus=gpus,
    )


def test_a_machine_has_budgets_less_what_is_left_to_others():
    assert budgets_of(look(gpu(24 * GIB), gpu(8 * GIB))) == {"ram": 30 * GIB, "gpu0": 23 * GIB, "gpu1": 7 * GIB}
    assert budgets_of(look(gpu(GIB), memory=2 * GIB)) == {"ram": GIB, "gpu0": GIB // 2}, "half is for models"
    odd = gpu(8 * GIB, integrated=True), gpu(None), gpu(8 * GIB)
    assert budgets_of(look(*odd)) == {"ram": 30 * GIB, "gpu2": 7 * GIB}, "the others have no memory of their own"
    assert budgets_of(look(memory=0)) == {}


def test_room_is_what_is_free():
    cards = gpu(8 * GIB, 4 * GIB, integrated=True), gpu(None), gpu(24 * GIB, 5 * GIB), gpu(GIB, -1)
    assert room_of(look(*cards)) == {"ram": 16 * GIB, "gpu2": 5 * GIB, "gpu3": 0}


def test_a_game_takes_from_the_budget_and_gives_it_back():
    budget, own = {"gpu0": 23 * GIB}, {"gpu0": 4 * GIB}
    calm = squeezed(budget, {"gpu0": GpuMemory(4 * GIB + 300 * MIB, 24 * GIB)}, own)
    assert calm == {"gpu0": 23 * GIB - 300 * MIB}
    game = squeezed(budget, {"gpu0": GpuMemory(16 * GIB, 24 * GIB)}, own, before=calm)
    assert game == {"gpu0": 11 * GIB}
    after = squeezed(budget, {"gpu0": GpuMemory(4 * GIB + 300 * MIB, 24 * GIB)}, own, before=game)
    assert after == calm


def test_a_display_that_breathes_changes_nothing_upwards():
    budget = {"gpu0": 23 * GIB}
    first = squeezed(budget, {"gpu0": GpuMemory(2 * GIB, 24 * GIB)}, {})
    again = squeezed(budget, {"gpu0": GpuMemory(2 * GIB - 100 * MIB, 24 * GIB)}, {}, before=first)
    assert again == first
    assert squeezed({"ram": GIB, "gpu0": GIB}, {"gpu0": GpuMemory(0, 0)}, {}) == {"ram": GIB, "gpu0": GIB}


SIZE = st.integers(0, 64 * GIB)


@given(most=SIZE, used=SIZE, total=SIZE, own=SIZE, more=SIZE, last=SIZE)
def test_what_others_take_is_never_given_out(most: int, used: int, total: int, own: int, more: int, last: int):
    budget = {"gpu0": most}
    now = squeezed(budget, {"gpu0": GpuMemory(used, total)}, {"gpu0": own}, before={"gpu0": last})["gpu0"]
    assert 0 <= now <= most
    if total:
        assert now <= max(0, total - max(0, used - own) - GIB)
    worse = squeezed(budget, {"gpu0": GpuMemory(used + more, total)}, {"gpu0": own}, before={"gpu0": last})["gpu0"]
    assert worse <= now
