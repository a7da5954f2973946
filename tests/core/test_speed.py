"""What a decision may cost. A fixed piece of Python says how much slower than usual the machine is at that moment.

The limits leave room: what rots by a factor is found.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from speed_cases import (
    WANTED,
    busy_schedule,
    chat_edits,
    configuration,
    configuration_text,
    groups,
    overlapping,
    products,
    running,
    timed,
)

from appliance.core.bodies.blocks import prefix_of
from appliance.core.scheduling.policy import Policy
from appliance.core.scheduling.routing import Local, Router
from appliance.core.scheduling.schedule import LOOK_AHEAD
from appliance.features.ollama.core.answering import Translator
from appliance.features.ollama.reading import Stopwatch
from appliance.features.pool.core.placing import prompt_of

# Four times what a machine of 2026 takes, or more.
PLAN_US = 1000
FILTERS_US = 65
EVENT_US = 5000
LINE_US = 25
PREFIX_US = {4: 32, 100: 600}
PROMPT_US = 2400

FIXED_US = 60  # on a quiet machine on which all limits are met: it scales them on slower and busier ones

POLICIES = pytest.mark.parametrize("policy", [groups, products, overlapping])


def quiet_us(call: Callable[[], object], rounds: int = 300, calls: int = 1) -> float:
    """Return the median of one call in microseconds, as it would be on a quiet machine."""
    found, fixed = timed(call, rounds, calls), timed(lambda: sorted(str(n * n % 977) for n in range(200)), rounds=60)
    return found.median / max(1.0, fixed.median / FIXED_US)


@POLICIES
@pytest.mark.parametrize("loaded", [3, 20])
def test_a_plan_among_200_models_takes_less_than_a_millisecond(policy: Callable[[], Policy], loaded: int) -> None:
    asked, now = policy(), running(loaded)
    decision = asked.plan(WANTED, now)
    assert WANTED in decision.target_set
    assert decision.evict
    assert quiet_us(lambda: asked.plan(WANTED, now)) < PLAN_US


def test_a_matrix_that_does_not_allow_what_runs_is_still_answered() -> None:
    """As after a reload: a hundred models run, of which sets of three let two stay."""
    asked, now = overlapping(), running(100)
    assert len(asked.plan(WANTED, now).evict) == 98
    assert quiet_us(lambda: asked.plan(WANTED, now), rounds=10) < 40_000


@POLICIES
@pytest.mark.parametrize("now", [0.0, 100.0], ids=["patient", "overdue"])
def test_an_event_with_fifty_models_waiting_takes_milliseconds(policy: Callable[[], Policy], now: float) -> None:
    schedule, request = busy_schedule(policy(), loaded=8, waiting=50)
    assert schedule.queued() > LOOK_AHEAD
    assert quiet_us(request, rounds=60) < EVENT_US
    assert quiet_us(lambda: schedule.tick(now), rounds=60) < EVENT_US


def test_a_request_to_a_loaded_model_takes_microseconds() -> None:
    schedule, request = busy_schedule(groups(), loaded=20, waiting=0)
    assert schedule.queued() == 0
    assert quiet_us(request, rounds=100, calls=10) < 20


def test_filters_of_a_chat_request_take_microseconds() -> None:
    edits, body = chat_edits()
    assert 1900 < len(body) < 2200
    edited = edits.apply(body, "fast")
    assert b'"the-real-name"' in edited
    assert b"temperature" not in edited
    assert quiet_us(lambda: edits.apply(body, "fast"), calls=10) < FILTERS_US


@pytest.mark.parametrize("messages", PREFIX_US)
def test_the_blocks_of_a_request_take_a_microsecond_or_two_for_each_message(messages: int) -> None:
    said = {"role": "user", "content": "What do llamas hum about? " * 16}
    body = msgspec.json.encode({"model": "m", "stream": True, "messages": [said] * messages})
    assert len(prefix_of(body).digests) == messages
    assert quiet_us(lambda: prefix_of(body), calls=10) < PREFIX_US[messages]


@pytest.mark.parametrize("messages", [1, 200])
def test_a_prompt_of_400_kilobytes_is_compared_in_half_a_millisecond(messages: int) -> None:
    said = {"role": "user", "content": "What do llamas hum about?\n" * (14_800 // messages)}
    body = msgspec.json.encode({"model": "m", "stream": True, "messages": [said] * messages})
    assert 380_000 < len(body) < 420_000
    assert prompt_of("m", body).blocks.size > 380_000
    assert quiet_us(lambda: prompt_of("m", body), rounds=60) < PROMPT_US


def test_a_name_is_found_among_300_models_in_a_microsecond_or_two() -> None:
    router = Router(configuration(configuration_text(300)))
    assert router.resolve("alias-150") == Local("model-150", "alias-150")
    assert quiet_us(lambda: router.resolve("alias-150"), calls=100) < 2


def test_a_configuration_of_300_models_is_read_in_less_than_a_second() -> None:
    text = configuration_text(300)
    assert len(configuration(text).models) == 300
    assert quiet_us(lambda: configuration(text), rounds=3) < 1_000_000


def test_a_chunk_becomes_a_line_of_ollamas_for_a_few_microseconds() -> None:
    one = Translator("alpha", Stopwatch(), chat=True)
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"id":"c","model":"m"}\n\n'
    assert one.feed(chunk).count(b"\n") == 1
    assert quiet_us(lambda: one.feed(chunk), calls=50) < LINE_US
