"""The roster and the presence of its boxes: any history of joins and leaves, of beats, sleeps and deaths."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.pool.core.keys import server_name
from appliance.features.pool.core.members import BEAT, GAP, GONE, Beat, Presence
from appliance.features.pool.core.roster import CLIENTS, ROUTES, Box, Roster, box_name, bus_plan, newer

BOXES = st.builds(
    Box,
    name=st.sampled_from([f"b{n}" for n in range(8)]),
    addresses=st.lists(st.sampled_from(["10.0.0.1", "fe80::1%eth0", "box.lan"]), max_size=3, unique=True).map(tuple),
    port=st.integers(1, 65533),
    dials_out=st.booleans(),
)
CHANGES = st.lists(st.tuples(st.sampled_from(["join", "join", "join", "leave", "drain", "move"]), BOXES), max_size=20)


def changed(roster: Roster, change: str, box: Box) -> Roster:
    try:
        match change:
            case "join":
                return roster.with_box(box)
            case "leave":
                return roster.without(box.name)
            case "drain":
                return roster.drained(box.name, drained=not box.dials_out)
            case _:
                return roster.moved(box.name, box.addresses, box.port)
    except BadRequest:
        return roster


def histories() -> st.SearchStrategy[list[Roster]]:
    def grown(changes: list[tuple[str, Box]]) -> list[Roster]:
        rosters = [Roster(pool="p", boxes=(Box(name="first", addresses=("10.0.0.9",)),))]
        for change, box in changes:
            rosters.append(changed(rosters[-1], change, box))
        return rosters

    return CHANGES.map(grown)


@given(histories())
def test_a_change_is_one_generation_and_a_name_has_one_box_for_ever(history: list[Roster]) -> None:
    owners: dict[str, int] = {}
    for before, after in pairwise(history):
        assert after.generation == before.generation + (after != before)
        assert newer(before, after) == newer(after, before) == after
        assert msgspec.json.decode(msgspec.json.encode(after), type=Roster) == after
        for box in after.boxes:
            if before.box(box.name) is None:
                assert owners.setdefault(box.name, after.generation) == after.generation


@given(histories())
def test_all_boxes_agree_on_the_servers_and_each_can_reach_them(history: list[Roster]) -> None:
    roster = history[-1]
    plans = {box.name: bus_plan(roster, box.name) for box in roster.boxes}
    assert len({(plan.kind, plan.voters) for plan in plans.values()}) <= 1
    for name, plan in plans.items():
        able = [box for box in roster.boxes if box.can_be_dialled]
        assert len(plan.voters) == (0 if len(plans) < 2 or not able else 3 if len(able) >= 3 else 1)
        assert list(plan.voters) == [box.name for box in able][: len(plan.voters)]
        assert plan.serves == (name in plan.voters)
        assert {server.name for server in plan.servers} == set(map(server_name, plan.voters))
        assert not plan.serves or (plan.servers[0].name, plan.servers[0].host) == (server_name(name), "127.0.0.1")
        routed = set(plan.voters) - {name} if plan.serves else set[str]()
        assert {route.name for route in plan.routes} == set(map(server_name, routed))
        ports = {server_name(box.name): box.port for box in roster.boxes}
        for offset, places in ((CLIENTS, plan.servers), (ROUTES, plan.routes)):
            assert all(place.port == ports[place.name] + offset for place in places)


@given(histories())
def test_a_change_moves_at_most_one_voter_of_three(history: list[Roster]) -> None:
    """So a quorum of the old voters is among the new ones, and the bus keeps what it holds."""
    for before, after in pairwise(history):
        old, new = (bus_plan(roster, roster.boxes[0].name).voters if roster.boxes else () for roster in (before, after))
        if len(old) == len(new) == 3:
            assert len(set(old) & set(new)) >= 2
        joined = len(after.boxes) > len(before.boxes)
        assert not joined or not old or set(old) <= set(new) or len(old) == 1 < len(new)


def test_two_rosters_of_one_generation_have_one_winner() -> None:
    roster = Roster(pool="p", boxes=(Box(name="a"),))
    both = [roster.with_box(Box(name=name)) for name in ("b", "c", "d")]
    random.Random(1).shuffle(both)
    assert len({newer(newer(both[i], both[j]), both[k]) for i, j, k in [(0, 1, 2), (2, 1, 0), (1, 2, 0)]}) == 1
    with pytest.raises(ValueError, match="two pools"):
        newer(roster, Roster(pool="q", boxes=()))


def test_an_external_bus_is_used_by_two_boxes_and_more() -> None:
    roster = Roster(pool="p", boxes=(Box(name="a"),), bus="tls://bus.lan:4222")
    assert bus_plan(roster, "a").kind == "none"
    assert bus_plan(roster.with_box(Box(name="b")), "a").url == "tls://bus.lan:4222"
    assert bus_plan(roster.with_box(Box(name="b")), "stranger").kind == "none"


@given(st.text(st.characters(codec="latin-1"), max_size=80))
def test_every_host_name_gives_a_box_name(host: str) -> None:
    box = Box(name=box_name(host))
    assert msgspec.json.decode(msgspec.json.encode(box), type=Box) == box


@given(st.integers(1, 5))
def test_a_taken_name_is_refused_with_one_that_is_free(joins: int) -> None:
    name = "a" * 63
    roster = Roster(pool="p", boxes=(Box(name=name),))
    for _ in range(joins):
        with pytest.raises(BadRequest) as refusal:
            roster.with_box(Box(name=name))
        free = roster.free_name(name)
        assert f"'{free}'" in str(refusal.value)
        assert ("names are used once" in str(refusal.value)) == (roster.box(name) is None)
        roster = roster.with_box(msgspec.json.decode(msgspec.json.encode(Box(name=free)), type=Box)).without(free)
    with pytest.raises(BadRequest, match=f"'{free}' was a box of this pool, and names are used once"):
        roster.with_box(Box(name=free))


def test_a_box_that_is_named_twice_makes_no_roster() -> None:
    with pytest.raises(msgspec.ValidationError, match="twice"):
        msgspec.json.decode(b'{"pool":"p","boxes":[{"name":"a"}],"gone":["a"]}', type=Roster)


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
