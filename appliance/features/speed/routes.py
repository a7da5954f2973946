"""``GET /api/speed``: speed over time, with what may have changed it."""

from __future__ import annotations

from datetime import UTC, datetime

from quart import Response

from appliance.core.records.history import MAX_LIMIT, HistoryQuery
from appliance.features.speed.figures import speed_curves
from appliance.features.speed.rules import MARKS, SpeedAnswer, marks, parse_speed_question
from appliance.http.control.answers import json_answer, parameters
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts


def speed_routes(kernel: Kernel) -> Routes:
    routes = Routes("speed")

    @routes.get("/api/speed", facts=RouteFacts(gives=SpeedAnswer))
    async def show_speed() -> Response:
        question = parse_speed_question(parameters(), datetime.now(UTC))
        grid = question.grid
        curves = await kernel.traffic.recorder.read(lambda table: speed_curves(table.connection, question))
        entries = await kernel.owners.history.read(HistoryQuery(kinds=MARKS, limit=MAX_LIMIT))
        start = datetime.fromtimestamp(grid.start, UTC)
        return json_answer(SpeedAnswer(start, grid.seconds, grid.points, curves, marks(question, entries)))

    return routes
