"""The hooks of a request's way. A feature signs in to those it needs, and the way knows none of them by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from appliance.core.bodies.head import RequestHead
from appliance.http.way.context import ModelRequest, RequestContext, Use
from appliance.http.way.guard import Guard
from appliance.http.way.routes import Route
from appliance.traffic.request import Request

Serve = Callable[[RequestContext, ModelRequest], Awaitable[None]]
"""Has a request answered, to its sink."""


class HoldEnded(Exception):
    """A request has been ended by its hold, which tells its clients."""


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


class Hold(Protocol):
    """Lets requests that ask for it outlive their clients. A program has one or none, and a plain request pays nothing.

    ``header`` is the one that asks for it, in small letters; its value says under which name, in ``most`` bytes.
    """

    header: bytes
    most: int

    def name_in(self, request: Request, guard: Guard, /) -> str | None:
        """Return the name under which a request is held, apart for each key; None: it does not ask. Raises BadRequest.

        Asked for routes whose answers may be streams.
        """
        ...

    async def serve(self, name: str, context: RequestContext, job: ModelRequest, serve: Serve, /) -> None:
        """Do ``serve`` to its end, and pass the answer on to the client for as long as that is there.

        Raises RequestCancelled, ShuttingDown and Busy.
        """
        ...
