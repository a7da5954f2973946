"""The grid of speed over time, its parameters, and the marks on it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.parameters import MAX_SPAN
from appliance.core.records.history import Happening
from appliance.errors import BadRequest
from appliance.features.speed.rules import MAX_MARKS, MAX_POINTS, grid_of, marks, parse_speed_question

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDS = st.integers(0, 1 << 33)


@given(ENDS, st.integers(60, MAX_SPAN))
def test_a_grid_has_the_whole_span_in_few_buckets(end: int, span: int):
    grid = grid_of(end, span)
    assert grid.start <= end - span
    assert grid.end - grid.seconds <= end < grid.end
    assert 2 <= grid.points <= MAX_POINTS
    assert grid.start > end - span - grid.seconds


@given(ENDS, st.integers(60, MAX_SPAN), st.integers(0, 10_000))
def test_a_later_question_has_the_same_buckets(end: int, span: int, later: int):
    before, after = grid_of(end, span), grid_of(end + later, span)
    if before.seconds == after.seconds:
        assert (after.start - before.start) % before.seconds == 0


@pytest.mark.parametrize(("span", "seconds"), [("1h", 15), ("1d", 300), ("7d", 3600), ("30d", 10_800)])
def test_spans_that_the_page_offers(span: str, seconds: int):
    question = parse_speed_question({"span": [span], "by": ["build"], "model": ["a", " ", "b"]}, NOON)
    assert (question.by, question.models, question.grid.seconds) == ("build", ("a", "b"), seconds)
    assert question.grid.end - seconds == int(NOON.timestamp())


@pytest.mark.parametrize(
    ("name", "text"),
    [("span", "0h"), ("span", "1w"), ("span", "3651d"), ("span", "-1d"), ("by", "key"), ("end", "yesterday")],
)
def test_a_bad_parameter_is_named(name: str, text: str):
    with pytest.raises(BadRequest, match=f"{name} must be") as raised:
        parse_speed_question({name: [text]}, NOON)
    assert raised.value.param == name


def test_the_default_is_all_models_of_the_last_day():
    assert parse_speed_question({}, NOON) == parse_speed_question({"span": ["1d"], "by": ["model"], "end": [""]}, NOON)
    early = parse_speed_question({"end": ["2026-11-19T12:00:00Z"]}, NOON)
    assert early.grid.end - early.grid.seconds == int((NOON - timedelta(days=1)).timestamp())


@pytest.mark.parametrize("year", ["0001", "1970", "9999"])
def test_times_at_the_end_of_the_calendar_have_a_grid(year: str):
    grid = parse_speed_question({"end": [f"{year}-01-01T00:00:00Z"], "span": ["3650d"]}, NOON).grid
    assert datetime.fromtimestamp(grid.start, UTC).year <= int(year) or grid.start == 0


def entry(hours: float, kind: str, model: str = "", engine: str = "", error: str = "") -> Happening:
    at = NOON - timedelta(hours=hours)
    return Happening(timestamp=at, kind=kind, model=model, engine=engine, error=error, what="configuration")  # pyright: ignore[reportArgumentType]


def test_only_what_may_change_speed_is_a_mark():
    entries = [
        entry(30, "loaded", "a", "cpu"),
        entry(20, "loaded", "a", "cpu"),
        entry(19, "loaded", "b", "gpu"),
        entry(18, "loaded", "a", "gpu"),
        entry(17, "reload"),
        entry(16, "reload", error="a mistake"),
        entry(15, "engine", engine="cpu", error="it failed"),
        entry(14, "loaded", "b", "cpu"),
        entry(-1, "reload"),
    ]

    def found(**asked: str) -> list[tuple[str, str]]:
        question = parse_speed_question({name: [text] for name, text in asked.items()}, NOON)
        return [(mark.kind, mark.model) for mark in marks(question, entries)]

    assert found() == [("loaded", "a"), ("reload", ""), ("engine", ""), ("loaded", "b")]
    assert found(model="a") == [("loaded", "a"), ("reload", ""), ("engine", "")]
    assert found(span="15h") == [("engine", ""), ("loaded", "b")]


def test_of_many_marks_the_newest_are_there():
    entries = [entry(20 - n / 100, "reload") for n in range(MAX_MARKS + 5)]
    found = marks(parse_speed_question({}, NOON), entries)
    assert [mark.timestamp for mark in found] == [each.timestamp for each in entries[5:]]
