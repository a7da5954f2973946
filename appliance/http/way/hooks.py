"""The hooks of a request's way. A feature signs in to those it needs, and the way knows none of them by name."""

from __future__ import annotations

from typing import Protocol

from appliance.core.bodies.head import RequestHead
from appliance.http.way.context import ModelRequest, Use
from appliance.http.way.routes import Route


class Turn(Protocol):
    """Stands around the turns of a chat's model: it may change the request, and answer it itself between turns."""

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """Return the request as it leaves it, and what answers it; None: it does not.

        ``model`` is the name of the request's target. The program's own requests come here, too (``inward``). The
        answer asks the model through the turns behind this one. Raises BadRequest and Forbidden.
        """
        ...

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """Return whether `take` would do anything with a request, or refuse it. A plain one is asked here only."""
        ...
