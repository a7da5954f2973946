"""The schedule as a state machine: limits hold, leases are safe, every ticket ends once, nothing is forgotten."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.core.config.matrix import Matrix
from appliance.core.config.types import Group, MatrixConfig
from appliance.core.records.history import Happening, happenings
from appliance.core.records.history_words import sentence
from appliance.core.scheduling.effects import (
    EVICTING,
    OUTDATED,
    Cause,
    Drain,
    Effect,
    Grant,
    ProcessState,
    Refuse,
    Start,
    Stop,
    Terms,
)
from appliance.core.scheduling.policy import FleetLimits, FreePolicy, GroupPolicy, MatrixPolicy, Policy
from appliance.core.scheduling.schedule import Schedule
from appliance.core.scheduling.waiting import QueueEntry
from appliance.errors import ApplianceError, Busy, ModelFailedToStart, ModelUnloaded, ShuttingDown, TooManyRequests

MODELS = ["a", "b", "c", "d", "e"]
FAILED = ModelFailedToStart("x", "it broke")
GIB = 1 << 30
POLICIES: list[Policy] = [
    FreePolicy(),
    GroupPolicy({}),
    GroupPolicy({"big": Group(members=["a", "b"]), "small": Group(swap=False, exclusive=False, members=["c", "d"])}),
    GroupPolicy({"kept": Group(persistent=True, members=["a"]), "rest": Group(members=["b", "c", "d", "e"])}),
    MatrixPolicy(
        Matrix(MatrixConfig(sets={"s": "(a | b) & c", "t": "d & +s", "u": "e"}, evict_costs={"c": 5}), MODELS)
    ),
]
LIMITS = [
    FleetLimits(capacity=2),
    FleetLimits(),
    FleetLimits(memory={"ram": 4 * GIB}),
    FleetLimits(capacity=3, memory={"ram": 5 * GIB, "gpu0": 2 * GIB}, queue=6),
]
TERMS = {
    "a": Terms(memory={"ram": GIB}, priority=1),
    "b": Terms(memory={"ram": 2 * GIB, "gpu0": GIB}, patience=3),
    "c": Terms(memory={"ram": GIB, "gpu0": 2 * GIB}, min_loaded=4, limit=3),
    "d": Terms(memory={"ram": 3 * GIB}, ttl=5, patience=math.inf),
    "e": Terms(memory={"ram": GIB}, pinned=True, ttl=5, patience=0),
}


class Fleet(RuleBasedStateMachine):
    """A world that carries effects out late and in any order, as real processes do."""

    tickets = Bundle("tickets")

    @initialize(policy=st.sampled_from(POLICIES), limits=st.sampled_from(LIMITS))
    def begin(self, policy: Policy, limits: FleetLimits) -> None:
        self.policy = policy
        self.limits = limits
        self.schedule = Schedule(limits, policy)
        self.number = 0
        self.now = 0.0
        self.running: dict[str, str] = {}  # model -> starting | ready | stopping
        self.ready_at: dict[str, float] = {}
        self.waiting: dict[int, str] = {}
        self.leased: dict[int, str] = {}
        self.dead: set[int] = set()  # leases whose process died under them
        self.expired: set[str] = set()
        self.used_at: dict[str, float] = {}
        self.decided: list[tuple[str, str, str]] = []
        self.timeline: list[Happening] = []
        self.closed = False

    def perform(self, effects: list[Effect]) -> None:
        self.timeline += happenings(effects)
        for effect in effects:
            match effect:
                case Start(model, requests):
                    self.check_start(model)
                    assert requests == sum(waiting == model for waiting in self.waiting.values())
                    self.running[model] = "starting"
                case Stop(model, cause):
                    assert self.running[model] in ("starting", "ready")
                    assert model not in self.leased.values() or model in self.expired, "a leased model was stopped"
                    if cause.rule == "idle" or cause.rule in EVICTING:
                        assert self.running[model] == "ready"
                        assert not TERMS[model].pinned, "a pinned model was stopped"
                        assert cause.idle == self.now - self.used_at[model]
                        assert cause.rule != "idle" or cause.idle >= TERMS[model].ttl > 0
                    if cause.rule in EVICTING:
                        assert self.now >= self.ready_at[model] + TERMS[model].min_loaded
                        self.check_cause(model, cause)
                        self.decided.append(("evicted", model, repr(cause)))
                    self.running[model] = "stopping"
                case Drain(model):
                    assert model in self.leased.values()
                case Grant(ticket, model):
                    assert self.waiting.pop(ticket) == model
                    assert self.running[model] == "ready"
                    self.leased[ticket] = model
                    self.used_at[model] = self.now
                case Refuse(ticket, model, error):
                    assert self.waiting.pop(ticket) == model
                    self.decided.append(("refused", model, str(error)))

    def check_cause(self, model: str, cause: Cause) -> None:
        """What is told is true: the rule needs the place, for a model that somebody waits for."""
        assert cause.by in self.waiting.values()
        wanted = {*self.running, *self.waiting.values()}
        match cause.rule:
            case "number":
                assert 0 < cause.most == self.limits.capacity < len(wanted)
            case "memory":
                assert cause.short
                for device, missing in cause.short.items():
                    taken = sum(TERMS[m].memory.get(device, 0) for m in wanted)
                    assert 0 < missing <= taken - self.limits.memory[device]
                    assert TERMS[model].memory[device]
            case rule:
                assert rule == self.policy.kind
                assert not isinstance(self.policy, GroupPolicy) or model in self.policy.plan(cause.by, [model]).evict

    def check_start(self, model: str) -> None:
        """Nothing that the policy would evict for it runs, and there is room."""
        assert not self.closed
        assert model not in self.running
        others = sorted(self.running)
        assert not set(self.policy.plan(model, others).evict) & set(others), "it started beside what it evicts"
        there = [*others, model]
        assert not self.limits.capacity or len(there) <= self.limits.capacity
        for device, most in self.limits.memory.items():
            assert sum(TERMS[m].memory.get(device, 0) for m in there) <= most, f"{device} is overcommitted"

    @rule(target=tickets, model=st.sampled_from(MODELS))
    def request(self, model: str) -> int:
        self.number += 1
        self.waiting[self.number] = model
        before = inside(self.schedule)
        foreseen = self.schedule.foresee(model, TERMS[model], self.now)
        assert inside(self.schedule) == before, "to foresee is not to do"
        effects = self.schedule.request(self.number, model, TERMS[model], self.now)
        refused = [
            str(effect.error) for effect in effects if isinstance(effect, Refuse) and effect.ticket == self.number
        ]
        assert refused == ([] if foreseen.refused is None else [str(foreseen.refused)])
        stopped = {effect.model for effect in effects if isinstance(effect, Stop)}
        assert stopped <= set(foreseen.goes)
        assert not stopped or not foreseen.held
        assert set(foreseen.held) <= set(foreseen.goes) <= set(self.running)
        self.perform(effects)
        return self.number

    @rule(target=tickets, model=st.sampled_from(MODELS))
    def request_by_taking(self, model: str) -> int:
        """As the fleet asks: `take`, and `request` only where that answers False."""
        self.number += 1
        self.waiting[self.number] = model
        alike = deepcopy(self.schedule, {id(self.policy): self.policy})
        deadline = alike.deadline(self.now)
        most = TERMS[model].limit or math.inf
        free = alike.state(model) is ProcessState.READY and alike.leases(model) < most and not self.closed
        taken = self.schedule.take(self.number, model, self.now)
        assert taken <= free, "it is not there, or has as many as it may have, or is going"
        assert taken == free or alike.queued(), "where nobody queues it yields to nobody"
        assert taken == (inside(alike) != inside(self.schedule)), "a ticket that is not taken has changed something"
        if taken:
            assert alike.request(self.number, model, TERMS[model], self.now) == [Grant(self.number, model)]
            assert inside(alike) == inside(self.schedule)
            assert self.schedule.deadline(self.now) >= deadline, "a lease makes no deadline earlier"
            self.perform([Grant(self.number, model)])
        else:
            self.perform(self.schedule.request(self.number, model, TERMS[model], self.now))
        return self.number

    @rule(ticket=tickets)
    def release(self, ticket: int) -> None:
        self.waiting.pop(ticket, None)
        if (model := self.leased.pop(ticket, None)) is not None:
            self.used_at[model] = self.now
        self.dead.discard(ticket)
        self.perform(self.schedule.release(ticket, self.now))

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.schedule.deadline(self.now)) <= end:
            self.now = deadline
            self.perform(self.schedule.tick(self.now))
        self.now = end

    @precondition(lambda self: "starting" in self.running.values())
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        self.becomes_ready(data.draw(st.sampled_from([m for m, s in self.running.items() if s == "starting"])))

    def becomes_ready(self, model: str) -> None:
        self.running[model] = "ready"
        self.ready_at[model] = self.used_at[model] = self.now
        waited = {t for t, m in self.waiting.items() if m == model}
        self.perform(self.schedule.ready(model, self.now))
        assert waited <= self.leased.keys(), "a waiter was not served when its model became ready"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def exited(self, data: st.DataObject) -> None:
        self.exits(data.draw(st.sampled_from(sorted(self.running))))

    def exits(self, model: str) -> None:
        failed = self.running.pop(model) == "starting"
        waited = {ticket for ticket, waiting in self.waiting.items() if waiting == model}
        self.expired.discard(model)
        for ticket in [t for t, m in self.leased.items() if m == model]:
            del self.leased[ticket]
            self.dead.add(ticket)
        effects = self.schedule.exited(model, FAILED, self.now)
        refused = {effect.ticket for effect in effects if isinstance(effect, Refuse) and effect.error is FAILED}
        assert refused == (waited if failed else set())
        self.perform(effects)

    @rule(model=st.sampled_from(MODELS))
    def unload(self, model: str) -> None:
        effects = self.schedule.unload(model, self.now)
        refused = [effect.error for effect in effects if isinstance(effect, Refuse) and effect.model == model]
        assert all(isinstance(error, ModelUnloaded) for error in refused)
        assert (Drain(model) in effects) == (model in self.leased.values())
        self.perform(effects)
        assert model not in self.waiting.values()
        assert self.running.get(model) != "starting"

    @rule(model=st.sampled_from(MODELS))
    def retire(self, model: str) -> None:
        effects = self.schedule.retire(model, TERMS[model], self.now)
        refused = [e.error for e in effects if isinstance(e, Refuse)]
        assert all(isinstance(error, Busy) for error in refused), "who waited for the next process was refused"
        self.perform(effects)

    @rule(model=st.sampled_from(MODELS))
    def remove(self, model: str) -> None:
        self.perform(self.schedule.remove(model, self.now))
        assert model not in self.waiting.values()
        assert self.running.get(model) != "starting"

    @rule(model=st.sampled_from(MODELS))
    def retune(self, model: str) -> None:
        self.perform(self.schedule.retune(model, TERMS[model], self.now))

    @rule(policy=st.sampled_from(POLICIES))
    def adopt(self, policy: Policy) -> None:
        self.policy = policy
        self.perform(self.schedule.adopt(self.limits, policy, self.now))

    @rule(model=st.sampled_from(MODELS))
    def expire(self, model: str) -> None:
        if self.schedule.state(model) is ProcessState.DRAINING:
            self.expired.add(model)
        self.perform(self.schedule.expire(model))

    @precondition(lambda self: self.number > 20)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.perform(self.schedule.close())
        assert not self.waiting

    @invariant()
    def views_agree(self) -> None:
        for model in MODELS:
            state = self.schedule.state(model)
            assert (state is None) == (model not in self.running)
            assert state is not ProcessState.DRAINING or self.schedule.leases(model)
            assert self.schedule.leases(model) == sum(m == model for m in self.leased.values())
            assert self.schedule.waiting(model) == sum(m == model for m in self.waiting.values())
            assert not TERMS[model].limit or self.schedule.waiting(model) + self.schedule.leases(model) <= 3
        sizes = sum((Counter(self.schedule.memory(model)) for model in self.running), Counter[str]())
        assert Counter(self.schedule.taken()) == sizes

    @invariant()
    def nobody_idles_beyond_its_time(self) -> None:
        for model in self.running:
            if self.schedule.state(model) is ProcessState.READY and not self.schedule.leases(model):
                terms = TERMS[model]
                assert terms.pinned or not terms.ttl or self.now < self.used_at[model] + terms.ttl

    @invariant()
    def everybody_in_the_queue_has_a_place(self) -> None:
        places = [self.schedule.position(ticket, self.now) for ticket in self.waiting]
        assert sorted(p for p in places if p is not None) == list(range(1, self.schedule.queued() + 1))

    @invariant()
    def who_waits_awaits_loads_and_at_the_end_its_own(self) -> None:
        for ticket, model in self.waiting.items():
            awaited = self.schedule.awaited(ticket, self.now)
            assert len({*awaited}) == len(awaited)
            assert model in awaited[-1:] or self.running.get(model) == "ready"
            if self.schedule.position(ticket, self.now) is None:
                assert awaited == [model]
        assert not any(self.schedule.awaited(ticket, self.now) for ticket in self.leased)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """While somebody queues, something will wake the schedule: a process, a lease, or the time."""
        if self.schedule.queued():
            moving = any(s in ("starting", "stopping") for s in self.running.values())
            assert moving or self.leased or self.schedule.deadline(self.now) < math.inf

    def teardown(self) -> None:
        """The world calms down: every start succeeds, every stop ends, every lease is given back, time passes."""
        for _ in range(200):
            if not (self.waiting or self.leased):
                break
            for model, state in list(self.running.items()):
                if state == "starting":
                    self.becomes_ready(model)
                elif state == "stopping":
                    self.exits(model)
            for ticket in list(self.leased):
                self.release(ticket)
            self.time_passes(1.0)
        assert not self.waiting, "somebody waits for ever"
        assert sorted(told_of(self.timeline)) == sorted(self.decided)


def told_of(timeline: list[Happening]) -> Iterator[tuple[str, str, str]]:
    """The evictions and refusals of a timeline, one for each, with the reason."""
    for entry in timeline:
        assert entry.model in sentence(entry)
        if entry.kind == "evicted":
            assert f"{entry.model} went for {entry.cause.by}: " in sentence(entry)
            yield "evicted", entry.model, repr(entry.cause)
        elif entry.kind == "refused":
            assert entry.error in sentence(entry)
            yield from [("refused", entry.model, entry.error)] * entry.requests


def inside(thing: object) -> object:
    """Everything that a schedule remembers, as values that can be compared."""
    if isinstance(thing, dict):
        return [(key, inside(value)) for key, value in cast("dict[object, object]", thing).items()]
    return inside(vars(thing)) if type(thing).__module__ in {Schedule.__module__, QueueEntry.__module__} else thing


TestFleet = Fleet.TestCase


@given(st.integers(), st.sampled_from(POLICIES), st.sampled_from(LIMITS))
def test_hundreds_of_random_requests_are_told_of(seed: int, policy: Policy, limits: FleetLimits) -> None:
    """Every eviction and every refusal is in the timeline once, with the reason of its decision."""
    world, chance = Fleet(), random.Random(seed)
    world.begin(policy, limits)
    while world.number < 200:
        ticket = world.request(chance.choice(MODELS))
        match chance.randrange(8):
            case 0 | 1 if starting := [m for m, state in world.running.items() if state == "starting"]:
                world.becomes_ready(chance.choice(starting))
            case 2 | 3 if stopping := [m for m, state in world.running.items() if state == "stopping"]:
                world.exits(chance.choice(stopping))
            case 4 if world.running:
                world.exits(chance.choice(sorted(world.running)))
            case 5:
                world.unload(chance.choice(MODELS))
            case _:
                world.time_passes(chance.choice([0.5, 1.0, 3.0, 10.0]))
        for other in chance.sample(range(1, ticket + 1), k=min(ticket, 4)):
            world.release(other)
        for held in list(world.leased)[:-3]:
            world.release(held)
    world.teardown()


def schedule_of(capacity: int, policy: Policy | None = None, **limits: int) -> Schedule:
    return Schedule(FleetLimits(capacity=capacity, **limits), policy or FreePolicy())


def ready(schedule: Schedule, *models: str, now: float = 0.0, terms: Terms | None = None) -> None:
    """All of them have been loaded, and are idle."""
    for number, model in enumerate(models, start=1000):
        schedule.request(number, model, terms or Terms(), now)
        schedule.ready(model, now)
        schedule.release(number, now)


def refusal(effects: Sequence[Effect]) -> ApplianceError:
    """The error of the one effect."""
    (effect,) = effects
    return effect.error


def test_other_terms_count_for_a_process_that_runs_and_for_who_waits() -> None:
    schedule = schedule_of(1)
    ready(schedule, "a")
    assert schedule.retune("a", Terms(ttl=30), 10.0) == []
    assert schedule.deadline(10.0) == 30.0
    assert schedule.retune("a", Terms(ttl=5), 10.0) == [Stop("a", Cause(rule="idle", idle=10))]
    schedule.exited("a", FAILED)
    ready(schedule, "b")
    schedule.request(1, "b", now=20.0)
    schedule.request(2, "c", Terms(patience=100), 20.0)
    assert schedule.deadline(20.0) == 120.0
    schedule.retune("c", Terms(patience=50), 20.0)
    assert schedule.deadline(20.0) == 70.0


def test_a_removed_model_ends_with_its_leases_and_nobody_waits_for_it() -> None:
    schedule = schedule_of(1)
    ready(schedule, "a")
    schedule.request(1, "a")
    schedule.retire("a")
    schedule.request(2, "a")  # for the next process
    refused = schedule.remove("a")
    assert refused == [Refuse(2, "a", refusal(refused))]
    assert schedule.unload("a") == [Drain("a")]
    assert schedule.release(1) == [Stop("a", OUTDATED)]
    schedule.exited("a", FAILED)
    ready(schedule, "b")
    assert schedule.remove("b") == [Stop("b", Cause(rule="removed"))]


def test_the_least_recently_used_idle_model_goes() -> None:
    schedule = schedule_of(2)
    ready(schedule, "a", "b")
    schedule.request(1, "a")
    schedule.release(1)
    assert schedule.request(2, "c") == [Stop("b", Cause(rule="number", by="c", longest_idle=True, most=2))]
    assert schedule.exited("b", FAILED) == [Start("c")]


def test_busy_and_loading_models_stay_and_the_queue_is_served_in_order() -> None:
    schedule = schedule_of(2)
    ready(schedule, "a")
    schedule.request(1, "a")
    schedule.request(2, "b")
    assert schedule.request(3, "c") == []
    assert schedule.request(4, "d") == []
    assert schedule.release(1) == [Stop("a", Cause(rule="number", by="c", longest_idle=True, most=2))]
    assert schedule.exited("a", FAILED) == [Start("c")]
    schedule.ready("b")
    assert schedule.release(2) == [Stop("b", Cause(rule="number", by="d", longest_idle=True, most=2))]
    assert schedule.exited("b", FAILED) == [Start("d")]


def test_after_close_everything_new_is_refused() -> None:
    schedule = schedule_of(2)
    ready(schedule, "b")
    schedule.request(1, "a")
    assert [type(e.error) for e in schedule.close() if isinstance(e, Refuse)] == [ShuttingDown]
    assert [type(refusal(schedule.request(2, model))) for model in ("a", "b")] == [ShuttingDown] * 2
    assert schedule.exited("a", FAILED) == []


@pytest.mark.parametrize("event", ["ready", "exited"])
def test_illegal_events_raise_and_change_nothing(event: str) -> None:
    schedule = schedule_of(1)
    with pytest.raises(RuntimeError):
        schedule.ready("a") if event == "ready" else schedule.exited("a", FAILED)
    assert schedule.request(1, "a") == [Start("a")]
    with pytest.raises(RuntimeError):
        schedule.request(1, "b")


def test_a_stream_of_requests_cannot_starve_another_model() -> None:
    """Overlapping leases on a; b comes at 0 and gets its turn one lease after its patience."""
    schedule = schedule_of(1)
    ready(schedule, "a")
    leased, granted = [schedule.request(10, "a")], 0.0
    assert schedule.request(1, "b", Terms(patience=2)) == []
    for ticket in range(11, 110):
        now = (ticket - 10) * 0.5
        effects = schedule.tick(now)
        leased.append(schedule.request(ticket, "a", Terms(), now))
        effects += schedule.release(ticket - 1, now)  # each lease lasts until after the next one has begun
        if any(isinstance(effect, Stop) for effect in effects):
            granted = now
            break
    assert 2 <= granted <= 2.5
    assert schedule.exited("a", FAILED, granted) == [Start("b", waited=granted)]
    assert schedule.ready("b", granted) == [Grant(1, "b")]
    assert schedule.waiting("a") == 1, "the request that came after b's patience waits behind it"


def test_a_yielding_model_serves_again_when_nobody_waits_any_more() -> None:
    schedule = schedule_of(1)
    ready(schedule, "a")
    schedule.request(1, "a")
    schedule.request(2, "b", Terms(patience=1))
    assert schedule.tick(1) == []
    assert schedule.request(3, "a", Terms(), 1) == []
    assert not schedule.take(4, "a", 1)
    assert schedule.release(2, 2) == [Grant(3, "a")]
    assert schedule.take(4, "a", 2)


def test_priority_goes_first_but_not_before_the_overdue() -> None:
    schedule = schedule_of(1)
    ready(schedule, "a")
    schedule.request(1, "a")
    schedule.request(2, "b", Terms(patience=5), 0)
    schedule.request(3, "c", Terms(priority=9, patience=5), 1)
    assert (schedule.position(2, 1), schedule.position(3, 1)) == (2, 1)
    assert (schedule.position(2, 5), schedule.position(3, 5)) == (1, 2)
    schedule.tick(5)
    schedule.release(1, 5)
    assert schedule.exited("a", FAILED, 5) == [Start("b", waited=5)]


def test_swaps_that_do_not_collide_go_on_in_parallel() -> None:
    policy = GroupPolicy({n: Group(exclusive=False, members=[f"{n}1", f"{n}2"]) for n in ("x", "y")})
    schedule = schedule_of(0, policy)
    ready(schedule, "x1", "y1")
    schedule.request(1, "x1")
    assert schedule.request(2, "x2") == []
    assert schedule.request(3, "y2") == [Stop("y1", Cause(rule="group", by="y2", set="y"))]
    assert schedule.exited("y1", FAILED) == [Start("y2")]


def test_memory_evicts_as_few_as_needed() -> None:
    schedule = Schedule(FleetLimits(memory={"ram": 10}), FreePolicy())
    for model, size in (("small", 2), ("large", 7)):
        ready(schedule, model, terms=Terms(memory={"ram": size}))
    assert schedule.request(1, "new", Terms(memory={"ram": 6})) == [
        Stop("large", Cause(rule="memory", by="new", short={"ram": 5}))
    ]


def test_what_a_model_really_took_counts_from_then_on() -> None:
    schedule = Schedule(FleetLimits(memory={"ram": 10}), FreePolicy())
    ready(schedule, "a", terms=Terms(memory={"ram": 9}))
    schedule.measured("a", {"ram": 3})
    assert schedule.request(1, "b", Terms(memory={"ram": 7})) == [Start("b")]


def test_a_model_that_can_never_fit_is_refused_at_once() -> None:
    schedule = Schedule(FleetLimits(memory={"gpu0": GIB}), FreePolicy())
    error = refusal(schedule.request(1, "a", Terms(memory={"gpu0": 2 * GIB})))
    assert isinstance(error, ModelFailedToStart)
    assert "2048 MiB of gpu0 (limit 1024 MiB)" in str(error)


def test_a_pinned_model_stays_and_whoever_cannot_run_beside_it_is_told() -> None:
    schedule = schedule_of(0, GroupPolicy({}))
    ready(schedule, "a", terms=Terms(pinned=True, ttl=1))
    assert schedule.tick(100) == []
    error = refusal(schedule.request(1, "b", Terms(), 100))
    assert isinstance(error, Busy)
    assert "'a', which is pinned" in str(error)


def test_a_model_just_loaded_is_not_evicted() -> None:
    schedule = schedule_of(1)
    ready(schedule, "a", now=0, terms=Terms(min_loaded=4))
    assert schedule.request(1, "b", Terms(), 1) == []
    assert schedule.deadline(1) == 4
    assert schedule.tick(4) == [Stop("a", Cause(rule="number", by="b", idle=4, longest_idle=True, most=1))]


def test_a_model_takes_no_more_requests_than_its_limit() -> None:
    schedule = schedule_of(0)
    terms = Terms(limit=2)
    assert [schedule.request(ticket, "a", terms) for ticket in (1, 2)] == [[Start("a")], []]
    assert isinstance(refusal(schedule.request(3, "a", terms)), TooManyRequests)
    schedule.ready("a")
    assert isinstance(refusal(schedule.request(3, "a", Terms(limit=9))), TooManyRequests), "it was told 2 at last"
    schedule.release(1)
    assert schedule.request(4, "a", terms) == [Grant(4, "a")]


def test_a_full_queue_refuses() -> None:
    schedule = Schedule(FleetLimits(capacity=1, queue=2), FreePolicy())
    ready(schedule, "a")
    schedule.request(1, "a")
    refused: list[Sequence[Effect]] = [schedule.request(n, f"m{n}") for n in (2, 3, 4)]
    assert refused[:2] == [[], []]
    assert isinstance(refusal(refused[2]), Busy)
    assert schedule.request(5, "a") == [Grant(5, "a")], "what needs no queue is served"


def test_a_process_out_of_date_finishes_its_leases_and_hands_its_waiters_on() -> None:
    schedule = schedule_of(0)
    schedule.request(1, "a")
    assert schedule.retire("a") == [Stop("a", OUTDATED)]
    assert schedule.exited("a", FAILED) == [Start("a")]
    assert schedule.ready("a") == [Grant(1, "a")]
    assert schedule.retire("a") == []
    assert schedule.request(2, "a") == []
    assert schedule.release(1) == [Stop("a", OUTDATED)]
    assert schedule.exited("a", FAILED) == [Start("a")]


def test_nobody_overtakes_an_entry_that_he_would_keep_waiting() -> None:
    policy = GroupPolicy(
        {"solo": Group(members=["x"]), "team": Group(swap=False, exclusive=False, members=["y1", "y2"])}
    )
    schedule = schedule_of(0, policy)
    ready(schedule, "y1")
    schedule.request(1, "y1")
    assert schedule.request(2, "x") == []
    assert schedule.request(3, "y2") == [], "y2 evicts nobody, but x would have to wait for it, too"
    assert schedule.release(1) == [Stop("y1", Cause(rule="group", by="x", set="solo"))]
    assert schedule.exited("y1", FAILED) == [Start("x"), Start("y2")], "now y2 may run beside x, which it leaves alone"


def test_nobody_is_stopped_for_an_entry_that_would_evict_one_ahead_of_it() -> None:
    """x would evict a, and a would not evict x: so a has to be asked about first."""
    groups = {"one": Group(exclusive=False, members=["a", "y"]), "other": Group(exclusive=False, members=["z"])}
    schedule = schedule_of(0, GroupPolicy(groups))
    ready(schedule, "y", "z")
    assert schedule.request(3, "a") == [Stop("y", Cause(rule="group", by="a", set="one"))]
    assert schedule.request(4, "x") == [], "z serves on while a is ahead"
    assert schedule.exited("y", FAILED) == [Start("a")]
    assert schedule.ready("a") == [Grant(3, "a")]
    stops = [effect for effect in schedule.release(3) if isinstance(effect, Stop)]
    assert [(stop.model, stop.cause.by) for stop in stops] == [("a", "x"), ("z", "x")]
