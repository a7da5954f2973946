"""One request while it is answered (`RequestContext`), and what it asks of a model (`ModelRequest`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from msgspec import Struct

from appliance.core.bodies.codings import inflated, without_halves
from appliance.core.bodies.head import is_object
from appliance.http.bytes.body import Body, ClientLeft
from appliance.http.way.outgoing import JSON, Format
from appliance.http.way.routes import Route
from appliance.traffic.record import Record
from appliance.traffic.request import Request, Sink


class ClientConnection(Protocol):
    """The connection that a request came on, as far as its answer knows it."""

    left: bool
    on_left: Callable[[], None] | None

    def mark_unread(self) -> None: ...


class RequestContext:
    """Made by the gateway, once for each request; ``route`` is None for the program's own routes.

    Everything that ends a request from outside goes through `cancel`: its client's leaving, the end of the server's
    grace, and a cancellation over the API. The owner of the context enters ``scope``, and raises ``why`` behind it.
    """

    def __init__(
        self,
        request: Request,
        route: Route | None,
        sink: Sink,
        record: Record,
        body: Body,
        client: ClientConnection | None = None,
    ) -> None:
        self.request = request
        self.route = route
        self.sink = sink
        self.record = record
        self.body = body
        self.client = client
        """None for a request without a connection: the program's own, and a generation that outlives its client."""
        self.scope = trio.CancelScope()
        self.why: Exception | None = None
        """Why the scope was cancelled."""
        self.fault: int | None = None
        """The status for a failure that came after the answer's head had been sent."""
        self.left = False
        """The client did not wait for its answer."""
        self.follows = False
        """It reads what is ended as well, for the same reasons, and then has words for them."""

    def cancel(self, why: Exception) -> None:
        """End the request; the first reason counts."""
        if self.why is None and (not self.follows or isinstance(why, ClientLeft)):
            self.why = why
            self.scope.cancel()

    def raise_why(self) -> None:
        """Behind the scope: raise what has cancelled it, if that ended it."""
        if self.why is not None and self.scope.cancelled_caught:
            try:
                raise self.why
            finally:
                self.why = None  # its traceback leads back here: both would stay until Python looks for cycles

    async def read_body(self, limit: int | None = None) -> bytes:
        """All of it, without a coding. From here on the client's leaving ends the request.

        Text for a model has no halves of characters; anything else, such as a path, stays as it is. Raises as
        `Body.read`, `Body.grow_to` and `inflated`.
        """
        content = b"" if self.body.complete else await self.body.read(limit)
        self.stay()
        if content and (coding := self.request.header(b"content-encoding")) is not None:
            whole = bytearray()
            for piece in inflated(content, coding):
                whole += piece
                self.body.grow_to(len(whole))
                await trio.lowlevel.checkpoint()
            content = bytes(whole)
        return without_halves(content) if self.route is not None and is_object(content) else content

    def stay(self) -> None:
        """The request ends when its client leaves."""
        if self.client is not None:
            self.client.on_left = self._client_left
            if self.client.left:
                self._client_left()

    def _client_left(self) -> None:
        self.cancel(ClientLeft())


class ModelRequest(Struct, frozen=True, kw_only=True):
    """``name`` is the model's as the request has it; ``path`` is the path and query that its server gets."""

    request: Request
    route: Route
    name: str
    body: bytes
    format: Format = JSON
    edits: bool = True
    """The configuration's edits of bodies apply."""
    streams: bool = False
    extended: bool = False
    """The client's body had the member `appliance.core.bodies.head.EXTENSION`."""
    reports_wait: bool = True
    """The answer itself may report the wait, where it is a stream; False: its caller does."""
    path: str
    sink: Sink
    record: Record
    keep_alive: float | None = None
    """Seconds that the model is to stay after the request, infinity for ever; None leaves it as it is."""
    begin: Callable[[Sink], None] | None = None
    """Called with the sink of the answer, before that begins: what translates it has to know what it answers."""


AskModel = Callable[[ModelRequest], Awaitable[None]]
"""Has the model answer a request; returns when the answer is over and the model's lease given back."""

Use = Callable[[ModelRequest, AskModel], Awaitable[None]]
"""Answers a request between several turns of its model; returns when the answer is over."""
