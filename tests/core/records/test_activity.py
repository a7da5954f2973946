"""The activity log's parameters, shapes and arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.records.activity import (
    Row,
    Tokens,
    histogram,
    with_captures,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_row_has_the_names_that_clients_know():
    row = Row(id=7, timestamp=NOON, model="m", req_path="/v1/x", resp_status_code=500, duration_ms=3)
    zeros = dict.fromkeys(["cache_tokens", "draft_tokens", "draft_acc_tokens", "input_tokens", "output_tokens"], 0)
    assert json.loads(msgspec.json.encode(row)) == {
        "id": 7,
        "timestamp": "2026-11-20T12:00:00Z",
        "model": "m",
        "req_path": "/v1/x",
        "resp_content_type": "",
        "resp_status_code": 500,
        "tokens": {**zeros, "prompt_per_second": 0, "tokens_per_second": 0},
        "duration_ms": 3,
        "has_capture": False,
        "first_token_ms": -1,
        "client": "",
        "build": "",
        "conversation": "",
        "cache_miss": "",
        "again_tokens": 0,
    }
    failed = msgspec.structs.replace(row, error_msg="e", metadata={"k": "v"})
    assert json.loads(msgspec.json.encode(failed)).items() >= {"error_msg": "e"}.items()
    assert set(json.loads(msgspec.json.encode(Tokens())).values()) == {-1}


def test_captures_are_marked_when_a_page_is_shown():
    rows = tuple(
        Row(id=n, timestamp=NOON, model="m", req_path="/", resp_status_code=200, duration_ms=0) for n in (1, 2)
    )
    shown = with_captures(rows, {2}.__contains__)
    assert [(row.id, row.has_capture) for row in shown] == [(1, False), (2, True)]


class InMemory:
    """All speeds in a list."""

    def __init__(self, values: list[float]) -> None:
        self._sorted = sorted(values)
        self.count = len(values)

    def at(self, ranks: Sequence[int]) -> list[float]:
        return [self._sorted[rank] for rank in ranks]

    def binned(self, low: float, width: float, bins: int) -> list[int]:
        counts = [0] * bins
        for value in self._sorted:
            counts[min(int((value - low) / width), bins - 1)] += 1
        return counts


def direct(values: list[float]) -> dict[str, object] | None:
    """The same, straight from the definition."""
    if not values:
        return None
    ordered = sorted(values)

    def percentile(part: float) -> float:
        place = part * (len(ordered) - 1)
        below = int(place)
        return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])

    low, high = ordered[0], ordered[-1]
    told: dict[str, object] = {"min": low, "max": high, "bins": [len(values)], "binSize": 0.0}
    told |= {f"p{name}": percentile(name / 100) for name in (50, 95, 99)}
    if low != high:
        number = sorted((5, math.ceil(math.log2(len(values))) + 1, 20))[1]
        width = (high - low) / number
        edges = [low + width * n for n in range(number)]
        told["binSize"] = width
        told["bins"] = [
            sum(1 for v in values if min(int((v - low) / width), number - 1) == n) for n in range(len(edges))
        ]
    return told


@example([number * 1.1 for number in range(100)])
@given(st.lists(st.floats(0.001, 1e5), max_size=200) | st.lists(st.sampled_from([1.0, 2.0, 50.0]), max_size=40))
def test_a_histogram_is_what_its_definition_says(values: list[float]):
    found = histogram(InMemory(values))
    if found is None:
        assert values == []
        return
    told, expected = msgspec.to_builtins(found), direct(values)
    assert told.pop("bins") == expected.pop("bins")
    assert sum(found.bins) == len(values)
    assert told == pytest.approx(expected)
