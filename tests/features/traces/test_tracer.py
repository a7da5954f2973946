"""The sender of traces, with collectors that are slow, away, or refuse."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import trio
from ended_requests import ended
from otlp_collector import Collector, open_collector
from waiting import until

from appliance.core.config.additions import TracingConfig
from appliance.features.traces import otlp
from appliance.features.traces import tracer as sending
from appliance.features.traces.rules import TraceContext
from appliance.features.traces.tracer import BATCH, MOST, Tracer
from appliance.traffic.metrics import Metrics

AWAY = "http://127.0.0.1:9"


def tracer_for(endpoint: str, models: Sequence[str]) -> Tracer:
    tracer = Tracer(Metrics())
    tracer.adopt(TracingConfig(endpoint=endpoint))
    for model in models:
        tracer.on_request_ended(ended(model=model))
    return tracer


def counted(tracer: Tracer) -> tuple[int, int]:
    """Return how many were sent, and how many dropped."""
    return tracer.sent.value, tracer.dropped.value


def models(collector: Collector) -> list[str]:
    return [span.name.removeprefix("chat ") for span in collector.roots]


async def test_batches_go_out_in_order():
    names = [f"m{number}" for number in range(BATCH + 5)]
    async with open_collector() as collector:
        tracer = tracer_for(collector.endpoint, names)
        assert await tracer.send()
    assert models(collector) == names
    assert len(collector.taken) == 2
    assert counted(tracer) == (len(names), 0)


async def test_a_collector_that_comes_later_gets_what_waited_and_the_log_has_two_lines(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, sending.__name__)
    async with open_collector() as collector:
        tracer = tracer_for(AWAY, ["one", "two"])
        for _ in range(3):
            assert not await tracer.send()
        [line] = caplog.messages
        assert line.startswith(f"the collector at {AWAY} does not take traces: ")
        assert "correct 'tracing' in the configuration" in line
        tracer.adopt(TracingConfig(endpoint=collector.endpoint))
        collector.status = 503
        assert not await tracer.send()
        collector.status = 200
        assert await tracer.send()
    assert models(collector) == ["one", "two"]
    assert counted(tracer) == (2, 0)
    assert caplog.messages[-1] == f"the collector at {collector.endpoint} takes traces again"
    assert len(caplog.messages) == 3


async def test_a_collector_that_is_away_costs_the_oldest():
    names = [f"m{number}" for number in range(MOST + 10)]
    tracer = tracer_for(AWAY, names)
    assert tracer.dropped.value == 10
    assert not await tracer.send()
    for number in range(7):
        tracer.on_request_ended(ended(model=f"new{number}"))
    async with open_collector() as collector:
        tracer.adopt(TracingConfig(endpoint=collector.endpoint))
        assert await tracer.send()
    assert models(collector) == [*names[17:], *(f"new{number}" for number in range(7))]
    assert counted(tracer) == (MOST, 17)


async def test_a_batch_that_is_refused_is_not_sent_again(caplog: pytest.LogCaptureFixture):
    async with open_collector() as collector:
        collector.status = 401
        tracer = tracer_for(collector.endpoint, ["one"])
        assert await tracer.send()
        assert await tracer.send()
        assert collector.asked == 1
        assert tracer.dropped.value == 1
        assert "it answered 401" in caplog.text
        collector.status, collector.rejects = 200, 1
        tracer.on_request_ended(ended())
        assert await tracer.send()
    assert counted(tracer) == (0, 2)


async def test_a_collector_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sending, "TIMEOUT", 0.2)
    async with open_collector() as collector:
        collector.gate = trio.Event()
        tracer = tracer_for(collector.endpoint, ["one"])
        assert not await tracer.send()
    assert "it did not answer within 0.2 s" in caplog.text
    await tracer.flush()
    assert counted(tracer) == (0, 1)


async def test_a_collector_that_does_not_take_them_now_is_asked_seldom(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "PAUSE", 0.01)
    async with open_collector() as collector, trio.open_nursery() as nursery:
        collector.status = 503
        tracer = tracer_for(collector.endpoint, ["one"])
        nursery.start_soon(tracer.run)
        await until(lambda: collector.asked)
        for _ in range(50):
            tracer.on_request_ended(ended())
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert collector.asked == 1


def test_a_batch_that_is_sent_again_has_the_same_ids():
    """A collector that had taken it, and answered too late, sees no second request."""
    batch = [(TraceContext(bytes(range(16))), ended(), b"12345678")]
    assert otlp.encode("box", batch) == otlp.encode("box", batch)


async def test_switched_off_it_keeps_nothing():
    tracer = tracer_for(AWAY, ["one"])
    tracer.adopt(None)
    tracer.on_request_ended(ended())
    assert await tracer.send()
    await tracer.flush()
    assert tracer.dropped.value == 0


async def test_a_name_that_is_not_unicode_costs_nobody_a_trace():
    async with open_collector() as collector:
        tracer = tracer_for(collector.endpoint, ["\ud800", "alpha"])
        assert await tracer.send()
    assert models(collector) == ["?", "alpha"]
