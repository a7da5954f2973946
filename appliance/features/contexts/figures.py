"""The figures of the prompts' cache, computed in SQLite: however many rows there are, few come back.

Everything here waits for the database, in the thread of the activity log's owner. Raises sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime

from appliance.features.contexts.core.cache import (
    MAX_MISSES,
    MAX_NAMES,
    MAX_SESSIONS,
    CacheAnswer,
    CacheBy,
    CacheMissed,
    CacheQuestion,
    CacheSession,
    CacheTotals,
)

_NAME: Mapping[CacheBy, str] = {"client": "client", "model": "model_id"}
_LEAST_READ = 32
"""Tokens of a prompt whose speed counts: a few tokens take as long as many, and say nothing of a long prompt."""
_TOTALS = """
    COUNT(*), COALESCE(SUM(cache_tokens + input_tokens), 0), COALESCE(SUM(cache_tokens), 0),
    COALESCE(SUM(again_tokens), 0), SUM(cache_tokens / rate), SUM(again_tokens / rate)
"""
"""As `CacheTotals` has them. A request that the engine did not count is in none."""
_WHY = """
    CASE WHEN json_valid(metadata_json) THEN COALESCE(json_extract(metadata_json, '$.prompt_cache'), '') ELSE '' END
"""


def cache_answer(connection: sqlite3.Connection, question: CacheQuestion) -> CacheAnswer:
    """Return the answer, without the slots of sessions."""
    rows = f"""
        WITH counted AS (
            SELECT * FROM activity WHERE ts_created >= ?
            AND resp_status_code = 200 AND cache_tokens >= 0 AND input_tokens >= 0 AND cache_tokens + input_tokens > 0
        ), speeds AS (
            SELECT model_id, SUM(input_tokens) / SUM(input_tokens / prompt_per_second) AS rate FROM counted
            WHERE prompt_per_second > 0 AND input_tokens >= {_LEAST_READ} GROUP BY model_id
        )
    """
    span = (question.start,)

    def totals(name: str) -> list[CacheTotals]:
        statement = f"""
            {rows} SELECT {name}, {_TOTALS} FROM counted LEFT JOIN speeds USING (model_id)
            GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT {MAX_NAMES}
        """
        return [CacheTotals(*figures) for figures in connection.execute(statement, span)]

    reasons = connection.execute(
        f"{rows} SELECT cache_miss, COUNT(*) FROM counted WHERE cache_miss != '' GROUP BY 1 ORDER BY 2 DESC, 1", span
    )
    # SQLite takes the other columns from the row with the highest id.
    sessions = connection.execute(
        f"""
        {rows} SELECT model_id, conversation, client, COUNT(*), MAX(id), ts_created,
        cache_tokens + input_tokens + MAX(output_tokens, 0), cache_tokens, cache_tokens + input_tokens FROM counted
        GROUP BY model_id, conversation, CASE WHEN conversation = '' THEN client END
        ORDER BY MAX(id) DESC LIMIT {MAX_SESSIONS}
        """,
        span,
    )
    misses = connection.execute(
        f"""
        {rows} SELECT id, ts_created, model_id, client, conversation, cache_miss, {_WHY} FROM counted
        WHERE cache_miss != '' ORDER BY id DESC LIMIT {MAX_MISSES}
        """,
        span,
    )
    return CacheAnswer(
        start=_time(question.start),
        total=next(iter(totals("''")), CacheTotals("", 0, 0, 0, 0, None, None)),
        by=totals(_NAME[question.by]),
        reasons=dict(reasons.fetchall()),
        sessions=[
            CacheSession(model, conversation, client, count, row, _time(at), tokens, cached, prompt)
            for model, conversation, client, count, row, at, tokens, cached, prompt in sessions
        ],
        misses=[CacheMissed(row, _time(at), *told) for row, at, *told in misses],
    )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
