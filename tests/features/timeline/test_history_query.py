"""How the parameters of ``GET /api/history`` are read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from appliance.core.records.history import MAX_LIMIT, HistoryQuery
from appliance.errors import BadRequest
from appliance.features.timeline.rules import parse_history_query


def test_a_query() -> None:
    given = {
        "model": ["a", " ", "b"],
        "kind": ["evicted", "refused"],
        "after": ["7"],
        "start": ["2026-11-20T08:30:00Z"],
        "limit": ["5"],
        "other": ["x"],
    }
    assert parse_history_query(given) == HistoryQuery(
        models=("a", "b"),
        kinds=("evicted", "refused"),
        after=7,
        start=datetime(2026, 11, 20, 8, 30, tzinfo=UTC),
        limit=5,
    )


@pytest.mark.parametrize(
    "wrong", [{"kind": "stopped"}, {"after": "-1"}, {"before": "0"}, {"limit": str(MAX_LIMIT + 1)}, {"start": "today"}]
)
def test_a_wrong_query_names_its_parameter(wrong: dict[str, str]) -> None:
    ((name, text),) = wrong.items()
    with pytest.raises(BadRequest) as refused:
        parse_history_query({name: [text]})
    assert refused.value.param == name
