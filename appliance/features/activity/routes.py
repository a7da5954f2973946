"""The activity log, its statistics and captured requests; paths and answers are llama-swap's (0bdb3720)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs
from quart import Response

from appliance.core.parameters import read_whole
from appliance.core.records.activity import MAX_LIMIT, Query, parse_models
from appliance.errors import NotFound
from appliance.features.activity.rules import Format, head, lines, parse_format, parse_query
from appliance.http.control.answers import Pieces, json_answer, parameters
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.traffic.recorder import Recorder

EXPORTED: Mapping[Format, str] = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


class ActivityExport(Pieces):
    """All rows that a query finds, from the newest on; rows that come meanwhile are left out."""

    def __init__(self, recorder: Recorder, query: Query, kind: Format) -> None:
        self._recorder = recorder
        self._query = query
        self._kind: Format = kind
        self._before = head(kind)
        self._over = False

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        rows = await self._recorder.rows(self._query)
        before, self._before = self._before, b""
        self._over = len(rows) < self._query.limit or rows[-1].id <= max(1, self._query.min_id or 0)
        if rows:
            self._query = structs.replace(self._query, max_id=rows[-1].id - 1)
        return before + lines(rows, self._kind)


def activity_routes(kernel: Kernel) -> Routes:
    routes, recorder = Routes("activity"), kernel.traffic.recorder

    @routes.get("/api/metrics/activity")
    async def show_activity() -> Response:
        return json_answer(await recorder.page(parse_query(parameters())))

    @routes.get("/api/metrics/activity/export")
    async def export_activity() -> Response:
        kind = parse_format(parameters())
        query = structs.replace(parse_query(parameters()), limit=MAX_LIMIT, page=1, sort="id", order="desc")
        response = Response(ActivityExport(recorder, query, kind), content_type=EXPORTED[kind])
        response.headers["Content-Disposition"] = f'attachment; filename="activity.{kind}"'
        response.timeout = None
        return response

    @routes.get("/api/metrics/stats")
    async def show_stats() -> Response:
        models = parse_models(parameters())
        return json_answer(await recorder.read(lambda table: table.stats(models)))

    @routes.get("/api/captures/<capture_id>")
    async def show_capture(capture_id: str) -> Response:
        row = read_whole(capture_id, "id")
        capture = await recorder.capture(row)
        if capture is None:
            raise NotFound(f"there is no capture of request {row}; captureBuffer holds only the latest")
        return json_answer(capture)

    return routes
