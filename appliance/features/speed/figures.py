"""The figures of speed over time, computed in SQLite: however many rows there are, few numbers come back.

Everything here waits for the database, in the thread of the activity log's owner. Raises sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from appliance.features.speed.rules import MAX_CURVES, By, SpeedCell, SpeedCurve, SpeedFigures, SpeedQuestion, curves

_COLUMN: Mapping[By, str] = {"model": "model_id", "client": "client", "build": "build"}
_FIGURES = """
    COUNT(*),
    SUM(read) / SUM(read / prompt_per_second),
    SUM(written) / SUM(written / tokens_per_second),
    MIN(first_token_ms) FILTER (WHERE first_token_ms >= 0 AND rank >= 0.5),
    MIN(first_token_ms) FILTER (WHERE first_token_ms >= 0 AND rank >= 0.95),
    AVG(waited_ms),
    SUM(cached) * 1.0 / SUM(cached + input_tokens),
    SUM(accepted) * 1.0 / SUM(drafted)
"""
"""As `SpeedFigures` has them. A percentile is the least value that so many of the rows do not exceed."""
_COLUMNS = """
    prompt_per_second, tokens_per_second, first_token_ms, input_tokens,
    CASE WHEN prompt_per_second > 0 AND input_tokens > 0 THEN input_tokens END AS read,
    CASE WHEN tokens_per_second > 0 AND output_tokens > 0 THEN output_tokens END AS written,
    CASE WHEN instr(metadata_json, '"waited_ms"') AND json_valid(metadata_json)
        THEN json_extract(metadata_json, '$.waited_ms') ELSE 0 END AS waited_ms,
    CASE WHEN cache_tokens >= 0 AND input_tokens >= 0 THEN cache_tokens END AS cached,
    CASE WHEN draft_tokens > 0 THEN draft_acc_tokens END AS accepted,
    CASE WHEN draft_tokens > 0 THEN draft_tokens END AS drafted
"""
"""The parts of the figures; null where a row does not tell."""


def speed_curves(connection: sqlite3.Connection, question: SpeedQuestion) -> list[SpeedCurve]:
    """Return the curves, that with most requests first and the one for all others last."""
    column, grid, models = _COLUMN[question.by], question.grid, question.models
    of_models = f" AND model_id IN ({', '.join('?' * len(models))})" if models else ""
    rows = f"activity WHERE ts_created >= ? AND ts_created < ?{of_models}"
    span = (grid.start, grid.end, *models)
    with_most = f"SELECT {column} FROM {rows} GROUP BY 1 ORDER BY COUNT(*) DESC, 1 LIMIT ?"
    names: list[str] = [name for (name,) in connection.execute(with_most, (*span, MAX_CURVES))]
    statement = f"""
        WITH chosen AS (
            SELECT CASE WHEN {column} IN ({", ".join("?" * len(names))}) THEN {column} END AS curve,
            (ts_created - ?) / ? AS bucket, {_COLUMNS} FROM {rows}
        ), ranked AS (
            SELECT *, CUME_DIST() OVER (PARTITION BY curve, bucket, first_token_ms < 0 ORDER BY first_token_ms) AS rank
            FROM chosen
        )
        SELECT curve, bucket, {_FIGURES} FROM ranked GROUP BY curve, bucket
    """

    def cells(width: int) -> list[SpeedCell]:
        found = connection.execute(statement, (*names, grid.start, width, *span))
        return [(name, bucket, SpeedFigures(*figures)) for name, bucket, *figures in found]

    places = {name: place for place, name in enumerate([*names, None])}
    totals = sorted(cells(grid.end - grid.start), key=lambda cell: places[cell[0]])
    return curves(grid, cells(grid.seconds), totals)
