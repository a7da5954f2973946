"""JSON schemas for the embedded engine, which drops one that it cannot keep to: an `EngineTranslate`."""

from __future__ import annotations

from appliance.core.engine import EMBEDDED
from appliance.features.embedded.rules import ROUTES, has_schema, kept
from appliance.fleet.status import ChildStatus
from appliance.traffic.request import Request, Sink
from appliance.upstream.address import Address
from appliance.upstream.client import Outgoing
from appliance.upstream.pool import Pool


class KeptSchemas:
    """See `appliance.http.way.hooks.EngineTranslate`."""

    def is_for(self, route: str, build: str) -> bool:
        return build == EMBEDDED and route in ROUTES

    def wants(self, route: str, body: bytes, build: str | None) -> bool:
        return build in (EMBEDDED, None) and has_schema(route, body)

    async def body(self, route: str, body: bytes, there: Address, build: str, pool: Pool) -> bytes:
        """Raises BadRequest for a schema that the engine would drop."""
        return kept(body) if build == EMBEDDED else body

    def sink(self, route: str, body: bytes, sink: Sink) -> Sink:
        return sink

    async def answer_running(
        self, outgoing: Outgoing, request: Request, sink: Sink, status: ChildStatus | None
    ) -> bool:
        return False
