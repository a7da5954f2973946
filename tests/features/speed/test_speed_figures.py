"""Speed over time in real SQLite: the figures are those of the rows, and each row is in one bucket of one curve."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.speed.figures import speed_curves
from appliance.features.speed.rules import MAX_CURVES, SpeedCurve, SpeedFigures, SpeedGrid, SpeedQuestion, grid_of
from appliance.store.activity import ActivityTable
from appliance.store.activity_schema import open_memory
from appliance.wire import Row, Tokens

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
