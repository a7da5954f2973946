"""Speed over time: its grid and parameters, the figures in real SQLite, and the curves of the running program."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Appliance, OpenServer, chat, model
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.parameters import MAX_SPAN
from appliance.core.records.activity import Row, Tokens
from appliance.core.records.history import Happening
from appliance.errors import BadRequest
from appliance.features.speed.figures import speed_curves
from appliance.features.speed.rules import (
    MAX_CURVES,
    MAX_MARKS,
    MAX_POINTS,
    SpeedCurve,
    SpeedFigures,
    SpeedGrid,
    SpeedQuestion,
    grid_of,
    marks,
    parse_speed_question,
)
from appliance.store.activity_schema import open_memory
from appliance.store.activity_table import ActivityTable

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


END = 1_800_000_000
GRID = grid_of(END, 3600)
COUNTS = st.integers(-1, 40)
RATES = st.sampled_from([-1.0, 0.0, 0.5, 20.0, 333.0])
WAITS = st.none() | st.integers(0, 5000)


def row(
    at: int, model: str = "m", tokens: Tokens | None = None, first_token: int = -1, waited: int | None = None
) -> Row:
    return Row(
        timestamp=datetime.fromtimestamp(at, UTC),
        model=model,
        req_path="/v1/chat/completions",
        resp_status_code=200,
        tokens=tokens or Tokens(),
        duration_ms=1,
        metadata={"waited_ms": str(waited), "k": "v"} if waited is not None else msgspec.UNSET,
        first_token_ms=first_token,
        client=f"curl, {model}",
        build=model.upper(),
    )


TOKENS = st.builds(
    Tokens,
    cache_tokens=COUNTS,
    draft_tokens=COUNTS,
    draft_acc_tokens=st.integers(0, 40),
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    prompt_per_second=RATES,
    tokens_per_second=RATES,
)
ROWS = st.builds(
    row,
    st.integers(GRID.start - 40, GRID.end + 40),
    st.sampled_from([*"abcdefghijkl", ""]),
    TOKENS,
    st.integers(-1, 30),
    WAITS,
)


def rate(pairs: Sequence[tuple[int, float]]) -> float | None:
    known = [(count, speed) for count, speed in pairs if count > 0 and speed > 0]
    return sum(count for count, _ in known) / sum(count / speed for count, speed in known) if known else None


def share(parts: Sequence[tuple[int, int]]) -> float | None:
    whole = sum(whole for _, whole in parts)
    return sum(part for part, _ in parts) / whole if whole else None


def nearest(ranked: Sequence[int], percent: int) -> int | None:
    return ranked[math.ceil(percent * len(ranked) / 100) - 1] if ranked else None


def expected(rows: Sequence[Row]) -> SpeedFigures:
    """The figures by their definition."""
    costs = [each.tokens for each in rows]
    firsts = sorted(each.first_token_ms for each in rows if each.first_token_ms >= 0)
    waits = [int(each.metadata["waited_ms"]) if each.metadata else 0 for each in rows]
    cached = [
        (cost.cache_tokens, cost.cache_tokens + cost.input_tokens)
        for cost in costs
        if cost.cache_tokens >= 0 and cost.input_tokens >= 0
    ]
    return SpeedFigures(
        len(rows),
        rate([(cost.input_tokens, cost.prompt_per_second) for cost in costs]),
        rate([(cost.output_tokens, cost.tokens_per_second) for cost in costs]),
        nearest(firsts, 50),
        nearest(firsts, 95),
        sum(waits) / len(waits),
        share(cached),
        share([(cost.draft_acc_tokens, cost.draft_tokens) for cost in costs if cost.draft_tokens > 0]),
    )


def same(found: SpeedFigures, wanted: SpeedFigures) -> bool:
    pairs = zip(msgspec.structs.astuple(found), msgspec.structs.astuple(wanted), strict=True)
    return all(a == b if a is None or b is None else a == pytest.approx(b) for a, b in pairs)


def point(curve: SpeedCurve, bucket: int) -> SpeedFigures:
    return SpeedFigures(**{name: values[bucket] for name, values in curve.points.items()})  # pyright: ignore[reportArgumentType]


@given(st.lists(ROWS, max_size=60), st.lists(st.sampled_from("abx"), max_size=2))
def test_every_row_is_in_one_bucket_of_one_curve(rows: list[Row], models: list[str]):
    with closing(open_memory()) as connection:
        ActivityTable(connection, None).add([msgspec.structs.replace(each, id=n + 1) for n, each in enumerate(rows)])
        curves = speed_curves(connection, SpeedQuestion("model", tuple(models), GRID))
    inside = [
        each
        for each in rows
        if GRID.start <= each.timestamp.timestamp() < GRID.end and (not models or each.model in models)
    ]
    counts = Counter(each.model for each in inside)
    named = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_CURVES]
    assert [curve.name for curve in curves] == [*named, *([None] if len(counts) > MAX_CURVES else [])]
    buckets: defaultdict[tuple[str | None, int], list[Row]] = defaultdict(list)
    for each in inside:
        bucket = int(each.timestamp.timestamp() - GRID.start) // GRID.seconds
        buckets[each.model if each.model in named else None, bucket].append(each)
    for curve in curves:
        assert same(
            curve.total, expected([each for (name, _), of in buckets.items() if name == curve.name for each in of])
        )
        assert {len(values) for values in curve.points.values()} == {GRID.points}
        for bucket in range(GRID.points):
            if of := buckets.get((curve.name, bucket)):
                assert same(point(curve, bucket), expected(of))
            else:
                assert msgspec.structs.astuple(point(curve, bucket)) == (0, *[None] * 7)


@pytest.mark.parametrize(("by", "name"), [("model", "m"), ("client", "curl, m"), ("build", "M")])
def test_curves_by(by: str, name: str):
    question = msgspec.convert({"by": by, "models": (), "grid": SpeedGrid(END - 60, 1, 61)}, SpeedQuestion)
    with closing(open_memory()) as connection:
        ActivityTable(connection, None).add([row(END)])
        assert [curve.name for curve in speed_curves(connection, question)] == [name]


def test_metadata_of_others_does_no_harm():
    """llama-swap's file may hold what this program would not write."""
    with closing(open_memory()) as connection:
        ActivityTable(connection, None).add([row(END, waited=4), row(END, waited=5)])
        connection.execute("""UPDATE activity SET metadata_json = '{"waited_ms": ' WHERE id = 1""")
        (curve,) = speed_curves(connection, SpeedQuestion("model", (), GRID))
    assert curve.total.waited_ms == 2.5


async def speed(server: Appliance, query: str = "") -> dict[str, Any]:
    return (await server.good("GET", f"/api/speed?{query}")).json


def requests(told: dict[str, Any]) -> dict[str, int]:
    return {curve["name"]: curve["total"]["requests"] for curve in told["curves"]}


async def test_curves_of_real_requests(open_server: OpenServer, fake_model: Path) -> None:
    """`tests/features/speed/test_speed_figures.py` has the figures."""
    seats = InOrder(fake_engine("cpu"), fake_engine("gpu"))
    async with open_server(models=[model(fake_model, "a"), model(fake_model, "b")], chooser=seats) as server:
        assert requests(await speed(server)) == {}
        for name, stream in (("a", True), ("a", False), ("a", True), ("b", False)):
            headers = [("User-Agent", f"{name}-tester/1.0")]
            assert (await server.ask("POST", CHAT, chat(name, stream=stream), headers)).status == 200
        told = await speed(server, "span=1h")
        assert (told["seconds"], told["marks"]) == (15, [])
        assert requests(told) == {"a": 3, "b": 1}
        total = told["curves"][0]["total"]
        assert total["tokens_per_second"] > 0
        rows = [row for row in await server.rows() if row["model"] == "a"]
        firsts = sorted(row["first_token_ms"] for row in rows)
        assert [total["first_token_p50_ms"], total["first_token_p95_ms"]] == firsts[1:]
        assert total["waited_ms"] > 0, "its model was loaded for the first one"
        for curve in told["curves"]:
            assert {len(values) for values in curve["points"].values()} == {told["points"]}
        by_client = requests(await speed(server, "by=client"))
        assert by_client == {"a-tester/1.0, 127.0.0.1": 3, "b-tester/1.0, 127.0.0.1": 1}
        assert requests(await speed(server, "by=build&model=a")) == {"cpu": 3}, "with a task, and without"
        seats.engines.reverse()
        await server.ask("POST", "/models/unload", {"model": "a", "wait": True})
        await server.ask("POST", CHAT, chat("a"))
        told = await speed(server, "by=build&model=a")
        assert requests(told) == {"cpu": 3, "gpu": 1}
        [mark] = told["marks"]
        assert (mark["kind"], mark["model"]) == ("loaded", "a")
        assert mark["why"].endswith(" on gpu")
        assert (await speed(server, "end=2026-01-01T00:00:00Z"))["curves"] == []
        assert (await server.refuses(400, None, "GET", "/api/speed?span=long")).error["param"] == "span"
