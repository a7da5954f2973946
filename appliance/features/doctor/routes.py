"""``GET /api/doctor`` and ``/api/report``: the findings of this program about itself, and the support bundle."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from quart import Response, request

from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts

if TYPE_CHECKING:
    from msgspec import Struct

    from appliance.features.doctor.examining import OwnExamination


def doctor_routes(kernel: Kernel) -> Routes:
    routes = Routes("doctor")

    @cache
    def examination() -> OwnExamination:
        from appliance.features.doctor.examining import OwnExamination  # with all findings, which few requests need

        return OwnExamination(kernel)

    def shape() -> type[Struct]:
        from appliance.features.doctor.core.facts import shape_told

        return shape_told(kernel.examiners())

    @routes.get("/api/doctor", facts=RouteFacts(gives_late=shape))
    async def show_findings() -> Response:
        model = request.args.get("model", "")
        if request.args.get("line", ""):
            return json_answer(await examination().line(model))
        return json_answer(await examination().told(model))

    @routes.get("/api/report")
    async def pack_report() -> Response:
        """The bundle of ``doctor --report`` as a ZIP; ``?logs=1`` adds the logs."""
        packed = await examination().report(logs=bool(request.args.get("logs", "")))
        response = Response(packed, content_type="application/zip")
        response.headers["Content-Disposition"] = 'attachment; filename="llama-appliance-report.zip"'
        return response

    return routes
