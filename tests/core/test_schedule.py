"""The schedule as a state machine: limits hold, leases are safe, every ticket ends once, nothing is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from appliance.core.schedule import Drain, Effect, Grant, Refuse, Schedule, Start, State, Stop
from appliance.errors import ModelFailedToStart, ModelUnloaded, ShuttingDown

MODELS = ["a", "b", "c", "d", "e"]
FAILED = ModelFailedToStart("x", "it broke")


class Fleet(RuleBasedStateMachine):
    """A world that carries effects out late and in any order, as real processes do."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 2
        self.schedule = Schedule(self.capacity)
        self.number = 0
        self.running: dict[str, str] = {}  # model -> starting | ready | stopping
        self.waiting: dict[int, str] = {}
        self.leased: dict[int, str] = {}
        self.dead: set[int] = set()  # leases whose process died under them
        self.expired: set[str] = set()
        self.closed = False

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(model):
                    assert not self.closed
                    assert model not in self.running
                    self.running[model] = "starting"
                case Stop(model):
                    assert self.running[model] in ("starting", "ready")
                    assert model not in self.leased.values() or model in self.expired, "a leased model was stopped"
                    self.running[model] = "stopping"
                case Drain(model):
                    assert model in self.leased.values()
                case Grant(ticket, model):
                    assert self.waiting.pop(ticket) == model
                    assert self.running[model] == "ready"
                    self.leased[ticket] = model
                case Refuse(ticket, _):
                    del self.waiting[ticket]

    @rule(target=tickets, model=st.sampled_from(MODELS))
    def request(self, model: str) -> int:
        self.number += 1
        self.waiting[self.number] = model
        self.perform(self.schedule.request(self.number, model))
        return self.number

    @rule(ticket=tickets)
    def release(self, ticket: int) -> None:
        self.waiting.pop(ticket, None)
        self.leased.pop(ticket, None)
        self.dead.discard(ticket)
        self.perform(self.schedule.release(ticket))

    @precondition(lambda self: "starting" in self.running.values())
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from([m for m, s in self.running.items() if s == "starting"]))
        self.running[model] = "ready"
        waited = {t for t, m in self.waiting.items() if m == model}
        self.perform(self.schedule.ready(model))
        assert waited <= self.leased.keys(), "a waiter was not served when its model became ready"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def exited(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[model]
        self.expired.discard(model)
        for ticket in [t for t, m in self.leased.items() if m == model]:
            del self.leased[ticket]
            self.dead.add(ticket)
        self.perform(self.schedule.exited(model, FAILED))

    @rule(model=st.sampled_from(MODELS))
    def unload(self, model: str) -> None:
        self.perform(self.schedule.unload(model))
        assert model not in self.waiting.values()

    @rule(model=st.sampled_from(MODELS))
    def expire(self, model: str) -> None:
        if self.schedule.state(model) is State.DRAINING:
            self.expired.add(model)
        self.perform(self.schedule.expire(model))

    @precondition(lambda self: self.number > 20)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.perform(self.schedule.close())
        assert not self.waiting

    @invariant()
    def capacity_holds(self) -> None:
        assert len(self.running) <= self.capacity

    @invariant()
    def views_agree(self) -> None:
        for model in MODELS:
            state = self.schedule.state(model)
            assert (state is None) == (model not in self.running)
            assert self.schedule.leases(model) == sum(m == model for m in self.leased.values())
            assert self.schedule.waiting(model) == sum(m == model for m in self.waiting.values())

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """While somebody queues: a process is on its way up or down, or every one of them is in use."""
        if any(m not in self.running for m in self.waiting.values()):
            assert len(self.running) == self.capacity
            moving = any(s in ("starting", "stopping") for s in self.running.values())
            assert moving or all(m in self.leased.values() for m in self.running)

    def teardown(self) -> None:
        """The world calms down: every start succeeds, every stop ends, every lease is given back."""
        for _ in range(1000):
            if not (self.waiting or self.leased):
                break
            for model, state in list(self.running.items()):
                if state == "starting":
                    self.running[model] = "ready"
                    self.perform(self.schedule.ready(model))
                elif state == "stopping":
                    del self.running[model]
                    for ticket in [t for t, m in self.leased.items() if m == model]:
                        del self.leased[ticket]
                    self.perform(self.schedule.exited(model, FAILED))
            for ticket in list(self.leased):
                del self.leased[ticket]
                self.perform(self.schedule.release(ticket))
        assert not self.waiting, "somebody waits for ever"


TestFleet = Fleet.TestCase


def started(schedule: Schedule, *models: str) -> None:
    for number, model in enumerate(models, start=1000):
        schedule.request(number, model)
        schedule.ready(model)
        schedule.release(number)


def test_equal_requests_share_one_start() -> None:
    schedule = Schedule(4)
    assert schedule.request(1, "a") == [Start("a")]
    assert schedule.request(2, "a") == []
    assert schedule.ready("a") == [Grant(1, "a"), Grant(2, "a")]


def test_the_least_recently_used_idle_model_goes() -> None:
    schedule = Schedule(2)
    started(schedule, "a", "b")
    schedule.request(1, "a")
    schedule.release(1)
    assert schedule.request(2, "c") == [Stop("b")]
    assert schedule.exited("b", FAILED) == [Start("c")]


def test_busy_and_loading_models_stay_and_the_queue_is_served_in_order() -> None:
    schedule = Schedule(2)
    started(schedule, "a")
    schedule.request(1, "a")
    schedule.request(2, "b")
    assert schedule.request(3, "c") == []
    assert schedule.request(4, "d") == []
    assert schedule.release(1) == [Stop("a")]
    assert schedule.exited("a", FAILED) == [Start("c")]
    schedule.ready("b")
    assert schedule.release(2) == [Stop("b")]
    assert schedule.exited("b", FAILED) == [Start("d")]


def test_a_waiter_that_leaves_evicts_nothing() -> None:
    schedule = Schedule(1)
    started(schedule, "a")
    schedule.request(1, "a")
    schedule.request(2, "b")
    assert schedule.release(2) == []
    assert schedule.release(1) == []


def test_a_failed_start_refuses_its_waiters_and_the_next_request_tries_again() -> None:
    schedule = Schedule(1)
    schedule.request(1, "a")
    schedule.request(2, "a")
    assert schedule.exited("a", FAILED) == [Refuse(1, FAILED), Refuse(2, FAILED)]
    assert schedule.release(1) == []
    assert schedule.request(3, "a") == [Start("a")]


def test_a_request_for_a_stopping_model_waits_for_its_next_process() -> None:
    schedule = Schedule(1)
    started(schedule, "a")
    assert schedule.unload("a") == [Stop("a")]
    assert schedule.request(1, "a") == []
    assert schedule.exited("a", FAILED) == [Start("a")]


def test_unload_lets_leases_finish() -> None:
    schedule = Schedule(1)
    started(schedule, "a")
    schedule.request(1, "a")
    assert schedule.unload("a") == [Drain("a")]
    assert schedule.request(2, "a") == []
    assert schedule.release(1) == [Stop("a")]
    assert schedule.expire("a") == []


def test_unload_refuses_those_who_wait() -> None:
    schedule = Schedule(1)
    schedule.request(1, "a")
    effects = schedule.unload("a")
    assert [type(e) for e in effects] == [Refuse, Stop]
    assert isinstance(effects[0], Refuse)
    assert isinstance(effects[0].error, ModelUnloaded)
    assert schedule.ready("a") == []


def test_after_close_everything_new_is_refused() -> None:
    schedule = Schedule(1)
    schedule.request(1, "a")
    assert [type(e.error) for e in schedule.close() if isinstance(e, Refuse)] == [ShuttingDown]
    (effect,) = schedule.request(2, "a")
    assert isinstance(effect, Refuse)
    assert schedule.exited("a", FAILED) == []


def test_zero_is_unlimited() -> None:
    schedule = Schedule(0)
    assert [schedule.request(n, f"m{n}") for n in range(50)] == [[Start(f"m{n}")] for n in range(50)]


@pytest.mark.parametrize("event", ["ready", "exited"])
def test_illegal_events_raise_and_change_nothing(event: str) -> None:
    schedule = Schedule(1)
    with pytest.raises(RuntimeError):
        schedule.ready("a") if event == "ready" else schedule.exited("a", FAILED)
    assert schedule.request(1, "a") == [Start("a")]
    with pytest.raises(RuntimeError):
        schedule.request(1, "b")
