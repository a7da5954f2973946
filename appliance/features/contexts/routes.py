"""``GET /api/cache`` and ``DELETE /api/cache/kept``.

The figures are computed in SQLite: however many rows there are, few come back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import structs
from quart import Response, request

from appliance.features.contexts.core import cache
from appliance.features.contexts.files import KeptContexts
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.control.slots import SlotsInShort
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts

_NAME: Mapping[cache.CacheBy, str] = {"client": "client", "model": "model_id"}
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


def cache_routes(kept: KeptContexts | None, kernel: Kernel) -> Routes:
    """``kept`` are the contexts in files; None: none are kept."""
    routes, traffic, owners = Routes("contexts"), kernel.traffic, kernel.owners
    slots_in_short = SlotsInShort(owners.fleet, traffic.inflight)

    @routes.get("/api/cache", facts=RouteFacts(gives=cache.CacheAnswer))
    async def show_cache() -> Response:
        """The prompts' cache in figures, why it was missed, who sits in which slot, and the contexts in files."""
        question = cache.parse_cache_question(request.args, datetime.now(UTC))
        found = await traffic.recorder.read(lambda table: cache_answer(table.connection, question))
        slots = await slots_in_short.of({session.model for session in found.sessions})
        since = {model: room.since for model, room in owners.fleet.cache_rooms.items()}
        rows = cache.kept_rows(kept.entries()) if kept is not None else []
        return json_answer(structs.replace(found, sessions=cache.seated(found.sessions, slots, since), kept=rows))

    @routes.delete("/api/cache/kept", facts=RouteFacts(gives=cache.ClearedContexts))
    async def clear_contexts() -> Response:
        """Remove the kept contexts, or with ``?model=`` those of one model."""
        name = request.args.get("model")
        model = owners.catalog.snapshot.find(name) if name else None
        return json_answer(cache.cleared(await kept.clear(model.id if model else name) if kept is not None else ()))

    return routes


def cache_answer(connection: sqlite3.Connection, question: cache.CacheQuestion) -> cache.CacheAnswer:
    """Return the answer, without the slots of sessions. It waits for the database. Raises sqlite3.Error."""
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

    def totals(name: str) -> list[cache.CacheTotals]:
        statement = f"""
            {rows} SELECT {name}, {_TOTALS} FROM counted LEFT JOIN speeds USING (model_id)
            GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT {cache.MAX_NAMES}
        """
        return [cache.CacheTotals(*figures) for figures in connection.execute(statement, span)]

    reasons = connection.execute(
        f"{rows} SELECT cache_miss, COUNT(*) FROM counted WHERE cache_miss != '' GROUP BY 1 ORDER BY 2 DESC, 1", span
    )
    # SQLite takes the other columns from the row with the highest id.
    sessions = connection.execute(
        f"""
        {rows} SELECT model_id, conversation, client, COUNT(*), MAX(id), ts_created,
        cache_tokens + input_tokens + MAX(output_tokens, 0), cache_tokens, cache_tokens + input_tokens FROM counted
        GROUP BY model_id, conversation, CASE WHEN conversation = '' THEN client END
        ORDER BY MAX(id) DESC LIMIT {cache.MAX_SESSIONS}
        """,
        span,
    )
    misses = connection.execute(
        f"""
        {rows} SELECT id, ts_created, model_id, client, conversation, cache_miss, {_WHY} FROM counted
        WHERE cache_miss != '' ORDER BY id DESC LIMIT {cache.MAX_MISSES}
        """,
        span,
    )
    return cache.CacheAnswer(
        start=_time(question.start),
        total=next(iter(totals("''")), cache.CacheTotals("", 0, 0, 0, 0, None, None)),
        by=totals(_NAME[question.by]),
        reasons=dict(reasons.fetchall()),
        sessions=[
            cache.CacheSession(model, conversation, client, count, row, _time(at), tokens, cached, prompt)
            for model, conversation, client, count, row, at, tokens, cached, prompt in sessions
        ],
        misses=[cache.CacheMissed(row, _time(at), *told) for row, at, *told in misses],
    )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
