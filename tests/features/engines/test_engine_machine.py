"""Failures, time and proofs in any order: a seat is always found while one can be used, and none waits for ever.

The machine plays what the owner of engines does: it takes the best seat for a model, writes down what failed, proves
seats again, and lets days go by, with builds that tell lies at will.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from appliance.core.machine_look import MachineLook
from appliance.features.engines.core.choice import Ranked, best, rank
from appliance.features.engines.core.listing import CPU, Device, Fault
from appliance.features.engines.core.standing import BACK_OFF, FAILED_HOLDS, Proof, Seat, SeatFailed, key_of
from appliance.features.engines.core.state import EngineState, Forgotten, Learnt, reduce

SYSTEM = "Test 1"
LOOK = MachineLook(platform="linux-x64", system=SYSTEM, environment="native", cpu="Test CPU")
MOST_RUNS = 600
"""A hundred steps each, which takes a minute."""
LONGEST = max(BACK_OFF)
MODELS = ("m", "n")
FAULTS: list[Fault] = ["load", "crash", "garbage", "hang", "memory"]
PROCESSOR = Device(name=CPU, description="Test CPU", total=1 << 34, free=1 << 34)
CARD = Device(name="CUDA0", description="Test Card", total=1 << 33, free=1 << 33, pci="0000:01:00.0")
RENDERER = Device(name="Vulkan0", description="llvmpipe", total=1 << 31, free=1 << 31, software=True)


def seat(backend: str, device: Device, place: int) -> Seat:
    return Seat(build=f"linux-x64-{backend}/b1", backend=backend, digest=backend, place=place, devices=(device,))


SEATS = (
    seat("cuda12", CARD, 2),
    seat("cpu", PROCESSOR, 1),
    seat("embedded", PROCESSOR, 5),
    seat("vulkan", RENDERER, 2),
)
numbers = st.integers(0, len(SEATS) - 1)


class Engines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = EngineState(look=LOOK)
        self.now = 1e9

    def tell(self, event: Learnt) -> None:
        self.state = reduce(self.state, event)

    def ranked(self, model: str) -> list[Ranked]:
        return rank(SEATS, self.state, model=model, now=self.now)

    @initialize(number=numbers)
    def is_proven(self, number: int) -> None:
        self.prove(number, None, 100.0)

    @rule(seconds=st.sampled_from([1.0, 61.0, 3600.0, 86400.0, 30 * 86400.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([3600.0, 400 * 86400.0]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.now -= seconds

    @rule(number=numbers, fault=st.sampled_from([None, *FAULTS]), speed=st.floats(1.0, 1e4))
    def prove(self, number: int, fault: Fault | None, speed: float) -> None:
        one = SEATS[number]
        told = None if fault else speed
        self.tell(
            Proof(
                key=key_of(one, one.devices[0], SYSTEM), build=one.build, device=one.devices[0].name, fault=fault,
                why=fault or "", prompt_speed=told, generation_speed=told, at=self.now,
            )
        )  # fmt: skip

    @rule(model=st.sampled_from(MODELS))
    def the_best_seat_fails(self, model: str) -> None:
        found = best(self.ranked(model))
        if found is None:
            return
        one = found.seat
        self.tell(
            SeatFailed(
                build=one.build, seat=one.id, digest=one.digest, model=model, why="it died", at=self.now, others=True
            )
        )
        if found.standing != "probation" and sum(each.usable for each in self.ranked(model)) > 1:
            nxt = best(self.ranked(model), (one.id,))
            assert nxt.seat != one
            assert nxt.standing == "probation" or best(self.ranked(model)) == nxt

    @rule()
    def what_says_nothing_any_more_is_dropped(self) -> None:
        before = {model: [one.seat.id for one in self.ranked(model)] for model in MODELS}
        left = tuple(one for one in self.state.probations if one.counts(self.now))
        self.state = structs.replace(self.state, probations=left)
        assert before == {model: [one.seat.id for one in self.ranked(model)] for model in MODELS}

    @rule(number=numbers)
    def a_build_is_forgotten(self, number: int) -> None:
        self.tell(Forgotten((SEATS[number].digest,)))
        (one,) = [one for one in self.ranked("m") if one.seat == SEATS[number]]
        assert one.standing == "untried"

    @invariant()
    def a_seat_is_found_while_one_can_be_used(self) -> None:
        for model in MODELS:
            ranked = self.ranked(model)
            found = best(ranked)
            assert (found is not None) == any(one.usable for one in ranked)
            if found is not None and found.standing == "probation":
                assert all(one.standing in ("probation", "failed") for one in ranked)
            for one in ranked:
                if one.standing == "failed":
                    assert any(not proof.ok for proof in self.state.proofs_of(one.seat, self.now))

    @invariant()
    def nothing_is_out_for_ever(self) -> None:
        later = self.now + max(LONGEST, FAILED_HOLDS) + 120.0
        for model in MODELS:
            ranked = rank(SEATS, self.state, model=model, now=later)
            assert all(one.standing in ("proven", "untried") for one in ranked) or self._from_the_future()

    def _from_the_future(self) -> bool:
        """Written by a clock that was ahead: it counts when that time really comes."""
        times = [one.since for one in self.state.probations] + [one.at for one in self.state.proofs]
        return any(time > self.now for time in times)


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=min(settings().max_examples, MOST_RUNS))
