"""A schedule whose memory others take: idle models go, as few as help, and nothing that is in use or pinned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.scheduling.effects import ProcessState, Start, Stop, Terms
from appliance.core.scheduling.policy import FleetLimits, FreePolicy, fits
from appliance.core.scheduling.schedule import Schedule
from appliance.errors import ModelUnloaded


class One(Struct, frozen=True, kw_only=True):
    """A loaded model."""

    ram: int
    gpu: int
    pinned: bool = False
    leased: bool = False
    used: int = 0
    min_loaded: float = 0


def name_of(number: int) -> str:
    return f"m{number}"


def loaded(models: list[One], limits: FleetLimits | None = None) -> Schedule:
    """All of them ready at time 0, those in use with a lease, then the limits."""
    schedule = Schedule(FleetLimits(), FreePolicy())
    for number, one in enumerate(models):
        memory = {"ram": one.ram, "gpu0": one.gpu}
        terms = Terms(memory=memory, pinned=one.pinned, min_loaded=one.min_loaded)
        assert Start(name_of(number)) in schedule.request(number, name_of(number), terms)
        schedule.ready(name_of(number))
        if not one.leased:
            schedule.release(number)
    for number in sorted(range(len(models)), key=lambda n: models[n].used):
        if not models[number].leased:
            schedule.request(1000 + number, name_of(number))
            schedule.release(1000 + number)
    schedule.adopt(limits or FleetLimits(), FreePolicy())
    return schedule


def stopped(schedule: Schedule, now: float = 10.0) -> list[str]:
    return [effect.model for effect in schedule.squeeze(now) if isinstance(effect, Stop)]


def test_the_long_unused_goes_first_and_no_more_than_need_be():
    models = [One(ram=1, gpu=4, used=2), One(ram=1, gpu=4, used=1), One(ram=1, gpu=4, used=3)]
    assert stopped(loaded(models, FleetLimits(memory={"gpu0": 8}))) == ["m1"]


def test_who_waits_is_served_when_it_is_gone():
    schedule = loaded([One(ram=1, gpu=4), One(ram=1, gpu=4, leased=True)], FleetLimits(memory={"gpu0": 6}))
    assert stopped(schedule) == ["m0"]
    assert schedule.request(7, "new", Terms(memory={"gpu0": 2}), 10.0) == []
    assert Start("new", waited=1.0) in schedule.exited("m0", ModelUnloaded("m0"), 11.0)


MODELS = st.lists(
    st.builds(
        One,
        ram=st.integers(0, 4),
        gpu=st.integers(0, 4),
        pinned=st.booleans(),
        leased=st.booleans(),
        used=st.integers(0, 9),
        min_loaded=st.sampled_from([0.0, 60.0]),
    ),
    max_size=7,
)
LIMITS = st.builds(
    FleetLimits,
    memory=st.dictionaries(st.sampled_from(["ram", "gpu0"]), st.integers(0, 12)),
    capacity=st.integers(0, 3),
)


@given(MODELS, LIMITS)
def test_a_squeeze_stops_idle_models_alone_and_stops_enough_but_not_more(models: list[One], limits: FleetLimits):
    schedule = loaded(models, limits)
    gone = set(stopped(schedule))
    memory = FleetLimits(memory=limits.memory)
    taken = {name_of(n): {"ram": one.ram, "gpu0": one.gpu} for n, one in enumerate(models)}
    may_go = {name_of(n) for n, one in enumerate(models) if not (one.pinned or one.leased or one.min_loaded)}
    staying = [name for name in taken if name not in gone]
    assert gone <= may_go
    for name in taken:
        assert schedule.state(name) is (ProcessState.STOPPING if name in gone else ProcessState.READY)
    if fits(memory, [taken[name] for name in taken if name not in may_go]):
        assert fits(memory, [taken[name] for name in staying])
        for name in gone:
            assert not fits(memory, [taken[name], *(taken[other] for other in staying)]), "it went for nothing"
    else:
        short = [d for d, most in limits.memory.items() if sum(taken[name][d] for name in taken) > most]
        assert gone == {name for name in may_go if any(taken[name][device] for device in short)}
    assert stopped(schedule) == [], "once is enough"
    for number, one in enumerate(models):
        if one.leased:
            schedule.release(number, 11)
    gone |= set(stopped(schedule, 61))
    pinned = [taken[name_of(n)] for n, one in enumerate(models) if one.pinned]
    fitting = fits(memory, [taken[name] for name in taken if name not in gone])
    assert fitting == fits(memory, pinned), "what was in use, or loaded just now, goes later"
