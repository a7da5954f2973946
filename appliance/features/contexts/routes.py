"""``GET /api/cache`` and ``DELETE /api/cache/kept``."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import structs
from quart import Response, request

from appliance.features.contexts.core.cache import (
    CacheAnswer,
    ClearedContexts,
    cleared,
    kept_rows,
    parse_cache_question,
    seated,
)
from appliance.features.contexts.figures import cache_answer
from appliance.features.contexts.files import KeptContexts
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import RouteFacts, Routes
from appliance.http.control.slots import SlotsInShort
from appliance.http.kernel import Kernel


def cache_routes(kept: KeptContexts | None, kernel: Kernel) -> Routes:
    """``kept`` are the contexts in files; None: none are kept."""
    routes, traffic, owners = Routes("contexts"), kernel.traffic, kernel.owners
    slots_in_short = SlotsInShort(owners.fleet, traffic.inflight)

    @routes.get("/api/cache", facts=RouteFacts(gives=CacheAnswer))
    async def show_cache() -> Response:
        """The prompts' cache in figures, why it was missed, who sits in which slot, and the contexts in files."""
        question = parse_cache_question(request.args, datetime.now(UTC))
        found = await traffic.recorder.read(lambda table: cache_answer(table.connection, question))
        slots = await slots_in_short.of({session.model for session in found.sessions})
        since = {model: room.since for model, room in traffic.metrics.rooms.items()}
        rows = kept_rows(kept.entries()) if kept is not None else []
        return json_answer(structs.replace(found, sessions=seated(found.sessions, slots, since), kept=rows))

    @routes.delete("/api/cache/kept", facts=RouteFacts(gives=ClearedContexts))
    async def clear_contexts() -> Response:
        """Remove the kept contexts, or with ``?model=`` those of one model."""
        name = request.args.get("model")
        model = owners.catalog.snapshot.find(name) if name else None
        return json_answer(cleared(await kept.clear(model.id if model else name) if kept is not None else ()))

    return routes
