"""The models that an update is tried with: the most used one, else a loaded one, else the starter model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.catalog import STARTER_ID, Catalog, Snapshot
from appliance.cli.control import ModelList
from appliance.cli.model_options import sources_of
from appliance.cli.remote import NotRunning, Refused, Server, ServerFailed, ask
from appliance.core.config.types import Config
from appliance.core.records.activity import MAX_LIMIT, Query
from appliance.engines.updating import Candidate
from appliance.store.activity import open_activity

MOST = 3
"""Number of models to try if the first ones cannot be run at all."""


class Row(Struct, frozen=True):
    """A row of the activity log, as far as it is needed here."""

    model: str
    resp_status_code: int = 200


class Rows(Struct, frozen=True):
    """``GET /api/metrics/activity``."""

    data: list[Row]


async def models_to_try(server: Server, config: Config | None, named: str | None) -> list[Candidate]:
    """Return models with a file on this machine, best first. ``named`` goes before all; raises ModelNotFound for it."""
    snapshot = await trio.to_thread.run_sync(Catalog(sources_of((), None, False, True)).scan)
    if named is not None:
        model = snapshot.require(named)
        return [Candidate(model.id, Path(model.path))] if model.path else []
    used = most_used(await _rows(server, config))
    names = dict.fromkeys([*used, *await _loaded(server), STARTER_ID])
    return [found for name in names if (found := _candidate(snapshot, name)) is not None][:MOST]


def most_used(rows: list[Row]) -> list[str]:
    """Return models by the number of their answers, most first; on a tie, the most recently used one first."""
    answered = [row.model for row in rows if row.resp_status_code < 400]  # newest first
    return [name for name, _ in Counter(answered).most_common()]


def _candidate(snapshot: Snapshot, name: str) -> Candidate | None:
    model = snapshot.find(name)
    if model is None or model.error or not model.path or not Path(model.path).is_file():
        return None
    return Candidate(model.id, Path(model.path))


async def _rows(server: Server, config: Config | None) -> list[Row]:
    """Return the newest rows of the running server's log, else of the configuration's file; none without either."""
    try:
        return (await ask(server, "GET", f"/api/metrics/activity?limit={MAX_LIMIT}", Rows)).data
    except (NotRunning, Refused, ServerFailed):
        if config is None or config.store is None:
            return []
    path = Path(config.store.path)
    if not await trio.to_thread.run_sync(path.is_file):
        return []
    async with open_activity(path, MAX_LIMIT) as activity:
        page = await activity.page(Query(limit=MAX_LIMIT))
    return [msgspec.convert(row, Row, from_attributes=True) for row in page.data]


async def _loaded(server: Server) -> list[str]:
    try:
        models = (await ask(server, "GET", "/models", ModelList)).data
    except (NotRunning, Refused, ServerFailed):
        return []
    return [entry.id for entry in models if entry.status.value in ("loaded", "sleeping")]
