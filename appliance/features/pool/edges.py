"""The edges of the pool: its state as this box sees it, and files of models for its other boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from appliance.core.settings import HttpSettings
from appliance.errors import RouteNotFound
from appliance.features.pool.blob_answer import answer_blob
from appliance.features.pool.core.blobs import asks_for_blob
from appliance.features.pool.seat import PoolSeat
from appliance.http.control.edge_routes import MAX_CONTROL_BODY
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole

if TYPE_CHECKING:
    pass


class PoolStateRoute:
    """``GET /api/pool``: this box's pool as it sees it."""

    def __init__(self, seat: PoolSeat, settings: HttpSettings, url: str) -> None:
        self._seat, self._settings, self._url = seat, settings, url

    def answers(self, request: Request) -> bool:
        return request.path == "/api/pool" and request.method in ("GET", "HEAD")

    async def answer(self, context: RequestContext) -> None:
        await context.body.read(MAX_CONTROL_BODY)
        state = structs.replace(self._seat.state(), may_change=self._settings.admin, listen=self._url)
        await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(state))


class BlobRoutes:
    """GET and HEAD of ``/api/blobs``, of a box in a pool."""

    def __init__(self, pool: PoolSeat) -> None:
        self._pool = pool

    def answers(self, request: Request) -> bool:
        return asks_for_blob(request.method, request.path) and self._pool.owner is not None

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError and ClientLeft."""
        owner = self._pool.owner
        if owner is None:
            raise RouteNotFound(context.request.method, context.request.path)
        await answer_blob(context, owner.files)
