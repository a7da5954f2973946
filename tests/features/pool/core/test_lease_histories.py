"""Random histories of boxes that share a placement lease over a bad bus, with bad clocks, and that freeze and crash.

The bus is one register per key with revisions, as JetStream is. It loses, delays, reorders and doubles requests and
answers, returns old values, is away for an election, and sometimes loses everything. Each box has its own clock, up to
5 % wrong. The checks know nothing of the lease's insides but `held`, `epoch`, and who it says it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.lease import (
    TERM,
    Fences,
    KnownStore,
    PlacementLease,
    PutKey,
    ReadKey,
    Step,
    understood,
)

MODEL, KEY = "m", "place.m"
DRIFT = 0.05
FAULTS_END, END = 70.0, 115.0  # Seconds. In the time between them, each box has to get a turn.
ANSWER_WITHIN = 1.0
Call = Callable[[], None]


class Outcome(NamedTuple):
    """The answer to a step: the revision, what was read, and the number of the store; 0 for a conflict."""

    revision: int = 0
    value: bytes | None = None
    generation: int = 0


Answer = Callable[[Outcome], None]


class World:
    """The true time, the bus and what the checks have seen."""

    def __init__(self, seed: int, *, clocks_count_sleep: bool = True) -> None:
        self.chance = Random(seed)
        self.clocks_count_sleep = clocks_count_sleep
        self.time = 0.0
        self.events: list[tuple[float, int, Call]] = []
        self.numbers = iter(range(10**9))
        self.values: dict[str, list[tuple[int, bytes]]] = {}
        self.revision, self.generation, self.away_until = 0, 1, 0.0
        self.bad = self.chance.random()
        self.terms = set[tuple[int, str, int]]()  # epoch, holder and number of the store
        self.boxes = [BoxOfTest(self, f"b{n}") for n in range(3)]

    def at(self, delay: float, call: Call) -> None:
        heapq.heappush(self.events, (self.time + delay, next(self.numbers), call))

    @property
    def calm(self) -> bool:
        return self.time >= FAULTS_END

    def run(self) -> None:
        for box in self.boxes:
            self.at(self.chance.random(), box.start)
        faults = [self.freeze, self.crash, self.election, self.pause_holder, self.pause_sender, self.cut_holder]
        faults.append(self.cut_holder)
        for _ in range(self.chance.randrange(12)):
            self.at(self.chance.uniform(0, FAULTS_END - 1), self.chance.choice(faults))
        for _ in range(self.chance.choice((0, 0, 1, 2))):
            self.at(self.chance.uniform(0, FAULTS_END), self.lose_store)
        self.at(FAULTS_END, self.end_faults)
        while self.events and self.events[0][0] < END:
            self.time, _, call = heapq.heappop(self.events)
            call()
        assert all(box.had_turn for box in self.boxes), "no progress after the faults ended"

    def send(self, step: ReadKey | PutKey, answer: Answer) -> None:
        """Carry a request to the store, 0, 1 or 2 times, each with its own delay and answer."""
        for _ in range(self.copies()):
            self.at(self.delay(), partial(self.arrive, step, self.generation, answer))

    def arrive(self, step: ReadKey | PutKey, generation: int, answer: Answer) -> None:
        if generation != self.generation or self.time < self.away_until:
            return
        outcome = self.read(step.key) if isinstance(step, ReadKey) else self.put(step)
        for _ in range(self.copies()):
            self.at(self.delay(), partial(answer, outcome))

    def read(self, key: str) -> Outcome:
        past = self.values.get(key, [])
        if not self.calm and self.chance.random() < self.bad * 0.2:
            past = past[: self.chance.randrange(len(past) + 1)]
        revision, value = past[-1] if past else (0, None)
        return Outcome(revision, value, self.generation)

    def put(self, step: PutKey) -> Outcome:
        past = self.values.setdefault(step.key, [])
        if (past[-1][0] if past else 0) != step.revision:
            return Outcome()
        if past and step.key == KEY:
            assert understood(step.value).epoch >= understood(past[-1][1]).epoch, "the epoch of a record went back"
        self.revision += 1
        past.append((self.revision, step.value))
        return Outcome(self.revision, None, self.generation)

    def copies(self) -> int:
        return 1 if self.calm else self.chance.choices((1, 0, 2), (1, self.bad * 0.15, self.bad * 0.15))[0]

    def delay(self) -> float:
        late = not self.calm and self.chance.random() < self.bad * 0.1
        return self.chance.uniform(0.0, 4.0 if late else 0.02)

    def freeze(self) -> None:
        self.chance.choice(self.boxes).freeze(self.chance.choice((2.0, 14.0, 16.0, 40.0)) * self.chance.uniform(0.8, 1))

    def pause_holder(self) -> None:
        for box in self.boxes:
            if box.holds:
                box.freeze(self.chance.uniform(10, 20))

    def pause_sender(self) -> None:
        self.chance.choice(self.boxes).pause_after_put = self.chance.uniform(12, 24)

    def cut_holder(self) -> None:
        for box in self.boxes:
            if box.holds:
                box.cut_until = self.time + self.chance.uniform(15, 30)

    def crash(self) -> None:
        self.chance.choice(self.boxes).crash(self.chance.choice((0.2, 5.0, 20.0)))

    def election(self) -> None:
        self.away_until = self.time + self.chance.uniform(4, 11)

    def lose_store(self) -> None:
        self.values.clear()
        self.revision, self.generation = 0, self.generation + 1

    def end_faults(self) -> None:
        for box in self.boxes:
            box.had_turn, box.cut_until = False, 0.0
            box.thaw()
            if not box.running:
                box.start()

    def granted(self, box: BoxOfTest, generation: int, *, known: int) -> None:
        """Check the end of an attempt: ``known`` is the highest epoch that the box knew."""
        if not box.holds:
            return
        left = box.lease.left(box.now)
        assert 0 < left <= TERM
        assert box.lease.held(box.now + left / 2)
        assert not box.lease.held(box.now + left)
        holders = [each.me for each in self.boxes if each.holds]
        assert len(holders) <= 1, f"two holders: {holders}"
        term = (box.lease.epoch, box.me, generation)
        assert term not in self.terms, "a term that had run out went on under its epoch"
        assert term[0] > known, "an epoch that was known was used again"
        assert all(term[0] > epoch for epoch, _, store in self.terms if store == generation), "epochs went back"
        self.terms.add(term)


class BoxOfTest:
    """One program after the other in one box. What it writes to disk stays."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rate, self.slept, self.frozen_since = 1 + world.chance.choice((-DRIFT, 0.0, DRIFT)), 0.0, 0.0
        self.incarnation: int = 0
        self.request: int = 0
        self.waits = False
        self.running, self.frozen = False, False
        self.cut_until = 0.0  # until then its requests are lost: its link is down
        self.pause_after_put = 0.0  # seconds that it stands still after its next put, before the answer can come
        self.backlog: list[Call] = []
        self.disk: dict[str, int] = {}
        self.had_turn = False
        self.obeyed: tuple[int, str] = (0, "")
        self.load()

    def load(self) -> None:
        self.me = f"{self.name}/{self.incarnation}"
        self.fences = Fences(self.disk, lambda: 1e9)
        self.lease = PlacementLease(MODEL, KEY, self.fences, KnownStore(self.me))

    def start(self) -> None:
        self.incarnation += 1
        self.running, self.frozen, self.waits, self.backlog = True, False, False, []
        self.load()
        self.later(0.0, self.turn)

    @property
    def now(self) -> float:
        return (self.world.time - self.slept) * self.rate + 1000

    @property
    def holds(self) -> bool:
        """True if it may act at this moment: a process that stands still does not act."""
        return self.running and not self.frozen and self.lease.held(self.now)

    def later(self, delay: float, call: Call) -> None:
        self.world.at(delay / self.rate, partial(self.happen, self.incarnation, call))

    def happen(self, incarnation: int, call: Call) -> None:
        """Let something happen to this process, after it wakes if it stands still."""
        if not self.running or incarnation != self.incarnation:
            return
        if self.frozen:
            self.backlog.append(call)
        else:
            call()

    def turn(self) -> None:
        """Do one thing, and come back."""
        chance = self.world.chance
        self.later(chance.uniform(0.2, 1.5), self.turn)
        if self.waits or (self.world.calm and self.had_turn):
            return
        if not self.lease.held(self.now):
            self.attempt()
        elif self.world.calm or (chance.random() < 0.12 and self.world.time >= self.cut_until):
            self.had_turn = True
            self.request += 1  # an attempt that is under way ends
            step = self.lease.release("b1", self.world.time, self.now)
            if step is not None and self.world.time >= self.cut_until:
                self.world.send(step, lambda _: None)
        else:
            self.order()

    def attempt(self) -> None:
        self.carry_out(self.lease.attempt())

    def carry_out(self, step: Step | None) -> None:
        self.request += 1
        self.waits = isinstance(step, (ReadKey, PutKey))
        if isinstance(step, (ReadKey, PutKey)):
            hear, asked_by = partial(self.on_answer, self.request, step), self.incarnation
            if self.world.time >= self.cut_until:
                self.world.send(step, lambda outcome: self.happen(asked_by, partial(hear, outcome)))
            self.later(ANSWER_WITHIN, partial(self.give_up, self.request))
            if isinstance(step, PutKey) and self.pause_after_put and not self.world.calm:
                self.freeze(self.pause_after_put)
                self.pause_after_put = 0.0

    def give_up(self, request: int) -> None:
        if request == self.request:
            self.request += 1
            self.waits = False

    def on_answer(self, request: int, asked: ReadKey | PutKey, outcome: Outcome) -> None:
        if request != self.request:
            return  # it came too late, or is the second one
        self.request += 1
        self.waits = False
        if isinstance(asked, PutKey):
            if outcome.generation:
                self.carry_out(self.lease.on_stored(asked.key, outcome.revision))
            else:
                self.later(0.05, self.attempt)
            return
        known = self.fences.highest(MODEL)
        step = self.lease.on_entry(asked.key, outcome.value, outcome.revision, self.now)
        if step is None:
            self.world.granted(self, outcome.generation, known=known)
        else:
            self.carry_out(step)

    def order(self) -> None:
        """Send an order to some box. It may take far longer than the term."""
        chance = self.world.chance
        to, order = chance.choice(self.world.boxes), (self.lease.epoch, self.me)
        for _ in range(self.world.copies()):
            delay = chance.uniform(0, 40) if chance.random() < 0.2 else self.world.delay()
            self.world.at(delay, lambda: to.happen(to.incarnation, partial(to.on_order, *order)))

    def on_order(self, epoch: int, holder: str) -> None:
        if self.fences.admits(MODEL, epoch, holder):
            self.disk = self.fences.stored()
            assert (epoch, holder) == self.obeyed or epoch > self.obeyed[0], "an old order was obeyed"
            self.obeyed = (epoch, holder)
        else:
            assert epoch <= self.fences.highest(MODEL), "a good order was refused"

    def freeze(self, seconds: float) -> None:
        if self.running and not self.frozen:
            self.frozen, self.frozen_since = True, self.world.time
            self.world.at(seconds, self.thaw)

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            self.slept += 0.0 if self.world.clocks_count_sleep else self.world.time - self.frozen_since
            holders = [each.me for each in self.world.boxes if each.holds]
            assert len(holders) <= 1, f"two holders: {holders}"
            backlog, self.backlog = self.backlog, []
            for call in backlog:
                call()

    def crash(self, seconds: float) -> None:
        if self.running:
            self.running = False
            self.world.at(seconds, lambda: None if self.running else self.start())


@pytest.mark.parametrize("part", range(10))
def test_histories(request: pytest.FixtureRequest, part: int) -> None:
    """10,000 of them with ``--deep``, in ten parts."""
    option = request.config.getoption
    terms = 0
    each = 1_000 if option("--deep") else 150 if option("--all") else 30
    for seed in range(part * each, (part + 1) * each):
        world = World(seed)
        try:
            world.run()
        except AssertionError as cause:
            raise AssertionError(f"history {seed}, at {world.time:.3f} s: {cause}") from cause
        terms += len(world.terms)
    assert terms > each, "the histories hardly ever get a lease"


def test_a_clock_that_stands_still_during_sleep_would_make_two_holders() -> None:
    """So the histories can tell, and the program needs a clock that counts sleep."""

    def fails(seed: int) -> bool:
        try:
            World(seed, clocks_count_sleep=False).run()
        except AssertionError as cause:
            return "two holders" in str(cause)
        return False

    assert any(fails(seed) for seed in range(300))


HOLDERS, EPOCHS = st.sampled_from(["a/1", "b/1"]), st.integers(1, 6)
CALLS = st.lists(st.tuples(st.sampled_from(["order", "order", "record", "crash"]), EPOCHS, HOLDERS), max_size=30)


@given(CALLS)
def test_a_box_never_obeys_an_older_epoch_or_two_holders_in_one(calls: list[tuple[str, int, str]]) -> None:
    fences, disk = Fences({}, lambda: 1e9), dict[str, int]()
    obeyed, highest = (0, ""), 0
    for call, epoch, holder in calls:
        if call == "crash":
            fences, highest = Fences(disk, lambda: 1e9), obeyed[0]
        elif call == "record":
            fences.saw(MODEL, epoch, holder)
            highest = max(highest, epoch)
        elif fences.admits(MODEL, epoch, holder):
            disk = fences.stored()
            assert (epoch, holder) == obeyed or epoch > obeyed[0]
            assert epoch >= highest
            obeyed, highest = (epoch, holder), epoch
        else:
            assert epoch <= highest
        assert fences.highest(MODEL) == highest


class Alone:
    """One lease on a good bus."""

    def __init__(self) -> None:
        self.fences = Fences({}, lambda: 1e9)
        self.lease = PlacementLease(MODEL, KEY, self.fences, KnownStore("b0/1"))
        self.store: dict[str, tuple[int, bytes]] = {}

    def attempt(self, now: float, *, order_meanwhile: bool = False) -> None:
        step = self.lease.attempt()
        while isinstance(step, (ReadKey, PutKey)):
            revision, value = self.store.get(step.key, (0, None))
            if isinstance(step, ReadKey):
                step = self.lease.on_entry(step.key, value, revision, now)
            else:
                self.store[step.key] = (step.revision + 1, step.value)
                if order_meanwhile:
                    self.fences.admits(MODEL, understood(step.value).epoch, "b1/1")
                step = self.lease.on_stored(step.key, step.revision + 1)


def test_an_order_of_the_same_epoch_in_the_meantime_voids_the_put() -> None:
    """Its holder had the record of a store that was lost. The next attempt has a higher epoch."""
    alone = Alone()
    alone.attempt(0.0)
    alone.attempt(TERM + 0.2, order_meanwhile=True)
    assert not alone.lease.held(TERM + 0.2)
    alone.attempt(TERM + 0.3)
    assert alone.lease.held(TERM + 0.3)
    assert alone.lease.epoch == 2
