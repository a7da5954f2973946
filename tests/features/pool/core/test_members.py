"""Presence: a box that beats is never called gone because the listener was away, and a dead one soon is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.members import BEAT, GAP, GONE, Beat, Presence

NAMES = ("me", "b1", "b2", "b3")


@dataclass
class Pool:
    """Boxes that beat each second, more or less, and one listener with a clock of its own."""

    seed: int
    time: float = 0.0
    clock: float = 500.0
    presence: Presence = field(init=False)
    dead: set[str] = field(default_factory=set[str])  # boxes that do not beat
    unheard: set[str] = field(default_factory=set[str])  # boxes whose beats do not come
    asleep: bool = False
    sequence: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.presence = Presence("me")

    def beat(self, name: str, *, incarnation: str = "1", stopping: bool = False) -> bool:
        beat = Beat(box=name, incarnation=incarnation, sequence=self.sequence, stopping=stopping)
        return self.presence.on_beat(beat, self.clock)

    def view(self) -> dict[str, bool | None]:
        return self.presence.boxes(NAMES, self.clock)

    def run(self, seconds: float) -> dict[str, bool | None]:
        """Let time pass, and return the last view. A box that lives and is heard is never called gone in it."""
        end = self.time + seconds
        view: dict[str, bool | None] = {}
        while self.time < end:
            step = BEAT * self.chance.uniform(0.9, 1.1)
            self.time += step
            self.clock += step * 1.05
            self.sequence += 1
            if self.asleep:
                continue
            for name in self.chance.sample(NAMES, len(NAMES)):
                if name not in self.dead | self.unheard:
                    self.beat(name)
            view = self.view()
            assert view["me"]
            assert not [name for name in NAMES if view[name] is False and name not in self.dead | self.unheard]
        return view


seeds = st.integers(0, 10**6)


@given(seeds, st.floats(0.0, 100.0))
def test_sleep_and_freezes_make_nobody_gone(seed: int, seconds: float) -> None:
    pool = Pool(seed)
    assert pool.run(10) == dict.fromkeys(NAMES, True)
    pool.asleep = True
    pool.run(seconds)
    pool.asleep = False
    assert not [name for name, up in pool.view().items() if up is False]
    assert pool.run(2) == dict.fromkeys(NAMES, True)


@given(seeds, st.floats(0.0, 100.0), st.booleans())
def test_a_box_that_does_not_hear_the_others_calls_nobody_gone(seed: int, seconds: float, itself: bool) -> None:
    """Its server is cut off from the others. Or it stands still, and the box hears nothing at all."""
    pool = Pool(seed)
    pool.run(10)
    pool.unheard = {*NAMES} - ({"me"} if itself else set())
    assert False not in pool.run(seconds).values()
    assert not pool.presence.cut_off(pool.clock) if itself else pool.presence.cut_off(pool.clock) or seconds <= GAP
    pool.unheard = set()
    assert pool.run(2) == dict.fromkeys(NAMES, True)


@given(seeds, st.sampled_from(["b1", "b2", "b3"]), st.booleans())
def test_a_dead_box_is_gone_soon_even_after_the_listener_was_away(seed: int, name: str, slept: bool) -> None:
    pool = Pool(seed)
    pool.run(10)
    pool.dead = {name}
    assert slept or pool.run(GONE - 1.5)[name]
    if slept:
        pool.asleep = True
        pool.run(60)
        pool.asleep = False
        assert pool.run(GONE - 1.5)[name] is None
    assert pool.run(3.2) == {**dict.fromkeys(NAMES, True), name: False}
    pool.dead = set()
    assert pool.run(1.2)[name]


def test_a_box_that_was_never_heard_is_unknown_and_then_gone() -> None:
    pool = Pool(1, dead={"b3"})
    assert pool.presence.cut_off(pool.clock)
    assert pool.run(1)["b3"] is None
    assert pool.run(6)["b3"] is False


def test_a_box_that_stops_is_gone_at_once_and_its_next_start_is_back_at_once() -> None:
    pool = Pool(2)
    pool.run(10)
    pool.sequence += 1
    assert pool.beat("b1", stopping=True)
    assert pool.view()["b1"] is False
    assert pool.beat("b1", incarnation="2")
    assert pool.view()["b1"]


@pytest.mark.parametrize("late", range(3))
def test_copies_and_beats_of_the_program_before_are_not_taken(late: int) -> None:
    pool = Pool(3)
    pool.run(10)
    assert not pool.beat("b1")
    for incarnation in ("2", "3"):
        assert pool.beat("b1", incarnation=incarnation)
    pool.sequence += late
    assert not pool.beat("b1")
    assert pool.beat("b1", incarnation="3") == (late > 0)
