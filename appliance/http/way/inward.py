"""The program as its own client: a request to its own model routes, without a socket, through the same pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import trio

from appliance.core.head import read_query
from appliance.core.inward import UNWATCHED, Watch
from appliance.errors import ApplianceError, Busy, RouteNotFound, ShuttingDown
from appliance.http.bytes.tasks import Inbox
from appliance.http.way.explaining import explaining
from appliance.http.way.handover import Handover, Reply, handed_over
from appliance.http.way.routes import Route, model_route, single_route
from appliance.traffic.record import CLIENT_LEFT, Record, RecordingSink
from appliance.traffic.request import Request

if TYPE_CHECKING:
    from hypercorn.typing import HTTPRequestEvent

    from appliance.http.way.front import Front
    from appliance.http.way.pipeline import Pipeline

JSON_TYPE = b"application/json"


class Inward:
    """Asks the server that it is attached to; the `Asker` of `core.inward`. Made before the server, lives after it.

    Such a request has ``inward`` set: no slash command and no ``appliance`` member of its body is honoured, nothing
    is told while it waits, and no conversation id makes it outlive who asked.
    """

    def __init__(self) -> None:
        self._server: tuple[Front, Pipeline] | None = None

    def attach(self, front: Front, pipeline: Pipeline) -> None:
        """Ask this server from now on."""
        self._server = (front, pipeline)

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, *, origin: str = "program", watch: Watch | None = None
    ) -> AsyncGenerator[Reply]:
        """POST the JSON ``body``. Raises what the pipeline raises before the answer's head; later, `Reply` does.

        Raises Busy while there is no server, RouteNotFound for a path that belongs to no model. Leaving the block
        cancels the request; when the end of the answer has been received, its lease has been given back.
        """
        if self._server is None:
            raise Busy("the server does not take requests yet")
        front, pipeline = self._server
        request = _request(path, body, origin)
        route = single_route(request) if front.settings.single else model_route(request)
        if route is None:
            raise RouteNotFound(request.method, request.path)
        record = Record(request, route.name)
        record.admitted, record.watch = True, watch or UNWATCHED
        async with handed_over(record, partial(_answer, front, pipeline, route, body, record)) as reply:
            yield reply


async def _answer(
    front: Front, pipeline: Pipeline, route: Route, body: bytes, record: Record, handover: Handover
) -> None:
    """What the gateway does for a client, without a client's connection."""
    request, client = record.request, Inbox()
    sink = front.recorder.watch(record, handover) if route.metered else handover

    async def work() -> None:
        try:
            with front.bodies.reading() as reader, front.lifetime.request() as life:
                await pipeline.answer(request, route, reader, client, sink, record)
            if life.cancelled_caught:
                raise ShuttingDown
        except ApplianceError as error:
            handover.fail(error)
            raise

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.put, _whole(body))
            await explaining(work, sink, request)
            nursery.cancel_scope.cancel()
    finally:
        if isinstance(sink, RecordingSink):
            status = handover.status if handover.ended and handover.status is not None else CLIENT_LEFT
            front.recorder.finish(record, sink, route.name, status)
        handover.close()


def _whole(body: bytes) -> HTTPRequestEvent:
    return {"type": "http.request", "body": body, "more_body": False}


def _request(path: str, body: bytes, origin: str) -> Request:
    raw, _, query = path.partition("?")
    length = str(len(body)).encode()
    return Request(
        method="POST",
        path=unquote(raw),
        target=path,
        query=read_query(query.encode()) if query else {},
        headers=((b"Content-Type", JSON_TYPE), (b"Content-Length", length)),
        http_version="1.1",
        client=origin,
        inward=True,
    )
