"""The program as its own client: a request to its own model routes, without a socket, through the same pipeline.

The answer is handed over: its bytes pass from hand to hand, its failure is an exception.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

import trio
from msgspec import structs

from appliance.core.bodies.head import read_query
from appliance.core.headers import is_event_stream
from appliance.core.runs.inward import UNWATCHED, ProgressWatch
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.http.way.context import AskModel, ModelRequest
from appliance.traffic.record import Record
from appliance.traffic.request import Headers, Request
from appliance.trio_parts import beside

JSON_TYPE = b"application/json"


class HandoverReply:
    """An answer whose head has arrived; a slow reader slows the engine's connection, and nothing else."""

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
    """The sink of the pipeline."""

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
        self._pushed = b""

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self.event_stream = is_event_stream(headers)
        self.begun.set()

    def push(self, data: bytes) -> bool:
        self.sent += len(data)
        # The channel has no buffer, so ``_pushed`` is the only store, and a reader that is slow slows the engine.
        # Behind a failure come words that explain it to people; the reader gets the exception instead.
        if self.failure is None:
            self._pushed += data
        return not self._pushed

    async def flush(self) -> None:
        pushed, self._pushed = self._pushed, b""
        if pushed:
            await self._given.send(pushed)

    async def write(self, data: bytes) -> None:
        if not self.push(data):
            await self.flush()

    def finish(self) -> bool:
        self.ended = True
        return not self._pushed

    async def end(self) -> None:
        if not self.finish():
            await self.flush()

    def abort(self) -> None:
        self.ended = self.broken = True

    def fail(self, error: ApplianceError) -> None:
        """Raise it to the reader; the words that explain it, in a body or a record, are for the log alone."""
        self.failure = error
        self.begun.set()

    def close(self) -> None:
        """The request is over, and its lease given back."""
        self.begun.set()
        self._given.close()


@asynccontextmanager
async def handed_over(record: Record, answer: Callable[[Handover], Awaitable[None]]) -> AsyncGenerator[HandoverReply]:
    """Yield the reply that ``answer`` writes, from its head on; it runs on in a task, and closes the handover at its
    end.

    Raises what it failed with before the head. Leaving the block cancels it.
    """
    handover = Handover()
    async with beside(partial(answer, handover)):
        await handover.begun.wait()
        if handover.failure is not None:
            raise handover.failure.with_traceback(None)
        yield HandoverReply(handover, record)


@asynccontextmanager
async def answered(ask: AskModel, job: ModelRequest) -> AsyncGenerator[HandoverReply]:
    """The model's answer from its head on; its end comes when ``ask`` has returned. Raises what ``ask`` raises."""

    async def work(handover: Handover) -> None:
        try:
            await ask(structs.replace(job, sink=handover, reports_wait=False))
        except ApplianceError as error:
            handover.fail(error)
        finally:
            handover.close()

    async with handed_over(job.record, work) as reply:
        yield reply


Answer = Callable[[Request, Record, bytes, Handover], Awaitable[None]]
"""Has a request answered into a handover, as a client's would be; never raises an ApplianceError."""


class Inward:
    """The `Asker` of `core.runs.inward`: asks through the pipeline of clients' requests.

    Such a request has ``inward`` set: no slash command and no ``appliance`` member of its body is honoured, no progress
    is sent while it waits, and no conversation id makes it outlive its caller.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """Set by the pipeline, which is made with this."""

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, *, origin: str = "program", watch: ProgressWatch | None = None
    ) -> AsyncGenerator[HandoverReply]:
        """POST the JSON ``body``. Raises what the pipeline raises before the answer's head; later, `Reply` does.

        Raises RouteNotFound for a path that belongs to no model. Leaving the block cancels the request; when the end
        of the answer has been received, its lease has been given back.
        """
        request = _request(path, body, origin)
        record = Record(request, request.path)
        record.admitted, record.watch = True, watch or UNWATCHED
        assert self.answer is not None
        async with handed_over(record, partial(self.answer, request, record, body)) as reply:
            yield reply


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
