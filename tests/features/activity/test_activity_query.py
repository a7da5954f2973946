"""How the parameters of the activity log's routes are read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.records.activity import Query, parse_models
from appliance.errors import BadRequest
from appliance.features.activity.rules import parse_query

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_without_parameters_the_newest_25_rows_are_asked_for():
    assert parse_query({}) == Query(limit=25, page=1, sort="id", order="desc")
    assert parse_query({"limit": [""], "sort": [" "], "model": [" "], "max_id": ["0"], "other": ["x"]}) == Query()


def test_every_parameter():
    parameters = {
        "model": ["a", " b "],
        "start": ["2026-11-20T12:00:00Z"],
        "end": ["2026-11-20t13:00:00.123456789+01:00"],
        "min_id": ["3"],
        "max_id": ["9"],
        "failed": ["true"],
        "search": [" tool "],
        "limit": ["999"],
        "page": ["2", "x"],
        "sort": ["gen_speed"],
        "order": ["asc"],
    }
    assert parse_query(parameters) == Query(
        models=("a", "b"),
        start=NOON,
        end=NOON.replace(microsecond=123456),
        min_id=3,
        max_id=9,
        failed=True,
        search="tool",
        limit=999,
        page=2,
        sort="gen_speed",
        order="asc",
    )
    assert parse_models(parameters) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "1000"),
        ("page", "0"),
        ("min_id", "-1"),
        ("max_id", "٣"),
        ("sort", "ts_created; DROP TABLE activity"),
        ("order", "DESC"),
        ("start", "2026-11-20T12:00:00"),
        ("start", "2026-11-20T12:00:00 01:00"),
        ("end", "2026-13-20T12:00:00Z"),
        ("end", "1763640000"),
        ("failed", "yes"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: str):
    with pytest.raises(BadRequest, match=rf"^{name} must be ") as raised:
        parse_query({name: [value]})
    assert raised.value.param == name
    assert len(str(raised.value)) < 300


def test_a_plus_that_became_a_space_is_explained():
    with pytest.raises(BadRequest, match="%2B"):
        parse_query({"start": ["2026-11-20T12:00:00 01:00"]})


@given(st.dictionaries(st.sampled_from(["limit", "page", "start", "end", "sort", "min_id"]), st.lists(st.text())))
def test_any_text_is_a_query_or_a_bad_request(parameters: dict[str, list[str]]):
    try:
        query = parse_query(parameters)
    except BadRequest as error:
        named = error.param
    else:
        named = "limit"
        assert 1 <= query.limit <= 999
    assert named in (*parameters, "limit")
