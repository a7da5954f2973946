"""The program as its own client: a request to its own model routes, without a socket, through the same pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import trio

from appliance.core.head import read_query
from appliance.core.inward import UNWATCHED, Watch
from appliance.errors import ApplianceError, Busy, RouteNotFound, ShuttingDown, UpstreamFailed
from appliance.http.explaining import explaining
from appliance.http.record import CLIENT_LEFT, Record, RecordingSink
from appliance.http.request import Request
from appliance.http.routes import Route, model_route, single_route
from appliance.http.sink import EVENTS, Headers
from appliance.http.tasks import Inbox

if TYPE_CHECKING:
    from hypercorn.typing import HTTPRequestEvent

    from appliance.http.front import Front
    from appliance.http.pipeline import Pipeline

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
        handover, client = Handover(), Inbox()
        event: HTTPRequestEvent = {"type": "http.request", "body": body, "more_body": False}
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.put, event)
            nursery.start_soon(_answer, front, pipeline, route, client, handover, record)
            try:
                await handover.begun.wait()
                if handover.failure is not None:
                    raise handover.failure.with_traceback(None)
                yield Reply(handover, record)
            except Exception as error:  # noqa: BLE001  raised below: it leaves the nursery as itself, not as a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class Reply:
    """An answer whose head has arrived; who takes its bytes slowly slows the engine's connection, and nothing else."""

    def __init__(self, handover: Handover, record: Record) -> None:
        self.status = handover.status or 0
        self.headers: Sequence[tuple[bytes, bytes]] = handover.headers
        self.event_stream = handover.event_stream
        self._handover = handover
        self._record = record

    async def receive(self) -> bytes:
        """The next bytes, b"" after the last. Raises what the pipeline raises when the answer is cut short."""
        try:
            return await self._handover.taken.receive()
        except trio.EndOfChannel:
            pass
        if self._handover.failure is not None:
            raise self._handover.failure.with_traceback(None)
        if self._handover.broken:
            raise UpstreamFailed(self._record.model, "its answer broke off")
        return b""

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises UpstreamFailed when it is longer than ``limit`` bytes, and as `receive`."""
        body = bytearray()
        while data := await self.receive():
            body += data
            if len(body) > limit:
                raise UpstreamFailed(self._record.model, f"its answer is longer than {limit} bytes")
        return bytes(body)


class Handover:
    """The sink of the pipeline, whose bytes pass from hand to hand. What fails is an exception on the other side."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Headers = ()
        self.event_stream = False
        self.ended = False
        self.sent = 0
        self.broken = False
        self.failure: ApplianceError | None = None
        self.begun = trio.Event()
        self._given, self.taken = trio.open_memory_channel[bytes](0)

    async def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self.event_stream = any(name.lower() == b"content-type" and value.startswith(EVENTS) for name, value in headers)
        self.begun.set()

    async def write(self, data: bytes) -> None:
        self.sent += len(data)
        if self.failure is None and data:
            await self._given.send(data)

    async def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = self.broken = True

    def fail(self, error: ApplianceError) -> None:
        """It is told as an exception; the words that explain it, in a body or a record, are for the log alone."""
        self.failure = error
        self.begun.set()

    def close(self) -> None:
        """The request is over, and its lease given back."""
        self.begun.set()
        self._given.close()


async def _answer(
    front: Front, pipeline: Pipeline, route: Route, client: Inbox, handover: Handover, record: Record
) -> None:
    """What the gateway does for a client, without a client's connection."""
    request = record.request
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
        await explaining(work, sink, request)
    finally:
        if isinstance(sink, RecordingSink):
            status = handover.status if handover.ended and handover.status is not None else CLIENT_LEFT
            front.recorder.finish(record, sink, route.name, status)
        handover.close()


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
