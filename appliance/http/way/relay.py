"""An engine's answer on its way to the client: its bytes, its header names, and an honest end when it breaks off."""

from __future__ import annotations

from collections import deque

import msgspec
import trio
from msgspec import Struct

from appliance.core.answers.continuation import Partial, Refusal, SoFar
from appliance.core.bodies.sse import Dialect, ErrorInfo, Event, WholeRecords, encode, error_record
from appliance.core.runs.slash import Family
from appliance.errors import UpstreamFailed
from appliance.http.errors import INVALID
from appliance.traffic.request import Headers, Sink
from appliance.upstream.client import Response

MAX_LATE_ANSWER = 16 << 20
"""Bytes of a plain answer that has to be turned into one record, because its stream has begun already."""

MAX_HELD = 1 << 19
"""Bytes of a stream that are held as they came, some 1700 tokens; of older ones only the text is kept."""

_DROPPED = (b"server", b"date", b"x-accel-buffering")
"""Response headers that speak of the engine's own server; hop-by-hop ones are gone already."""


class Trail:
    """The relayed part of one stream, in case it has to be continued; without a family only that there was one.

    Nothing is decoded before it is needed, or MAX_HELD is reached: then the oldest records are, one for each new one.
    """

    def __init__(self, family: Family | None) -> None:
        self.began: float | None = None
        """When the first record was relayed, in Trio's time."""
        self._reader = SoFar(family) if family is not None else None
        self._held: deque[bytes] = deque()
        self._size = 0

    @property
    def reads(self) -> bool:
        return self._reader is not None

    def add(self, records: bytes) -> None:
        """These have been passed on. Called for every chunk: it has to be cheap."""
        if self.began is None:
            self.began = trio.current_time()
        if self._reader is not None:
            self._held.append(records)
            self._size += len(records)
            if self._size > MAX_HELD:
                self._read(self._reader, MAX_HELD)

    def partial(self) -> Partial | Refusal:
        """The text so far; asked for only where it `reads`."""
        if self._reader is None:
            return Refusal("it was not kept")
        self._read(self._reader, 0)
        return self._reader.partial()

    def _read(self, reader: SoFar, left: int) -> None:
        while self._size > left:
            records = self._held.popleft()
            self._size -= len(records)
            reader.feed(records)


async def relay(
    response: Response,
    sink: Sink,
    dialect: Dialect = Dialect.OPENAI,
    trail: Trail | None = None,
    headers: Headers = (),
) -> None:
    """Pass a whole answer on; returns when the client's side has taken it. Raises UpstreamFailed when it breaks off.

    ``trail`` hears of the records of a stream; ``headers`` go out behind the engine's own. A broken event stream is cut
    where its last record ended, so that an error record can follow; after anything else that has begun, the connection
    is broken too.

    A stream is passed on where its bytes arrive, by ``take``, in one call without a task switch (`platform.poller`).
    This task wakes when the answer ends, breaks off, or finds the client's socket full.
    """
    if sink.status is not None:
        if not response.streaming or response.status != 200:
            await _answer_late(response, sink, dialect)
            return
    else:
        sink.start(response.status, [*_passed_on(response), *headers])
    records = WholeRecords()
    take = sink.push
    if response.streaming:

        def take_records(data: bytes) -> bool:
            if not (ready := records.feed(data)):
                return True
            if trail is not None:
                trail.add(ready)
            return sink.push(ready)

        take = take_records
    try:
        while not await response.each(take):
            await sink.flush()
        if rest := records.rest():
            sink.push(rest)
    except (UpstreamFailed, trio.Cancelled) as error:
        if records.torn or (not response.streaming and isinstance(error, UpstreamFailed)):
            sink.abort()
        raise
    await sink.end()


async def _answer_late(response: Response, sink: Sink, dialect: Dialect) -> None:
    """The client has had comments, so whatever the engine says has to become a record."""
    content = await response.read(MAX_LATE_ANSWER)
    if response.status >= 400:
        await sink.write(error_in(content, response.status, dialect))
    else:
        await sink.write(encode(Event(content.decode("utf-8", "replace"))))
    await sink.end()


def _passed_on(response: Response) -> list[tuple[bytes, bytes]]:
    headers = [
        header
        for header in response.headers
        if (name := header[0].lower()) not in _DROPPED and not name.startswith(b"access-control-")
    ]
    if response.streaming:
        headers.append((b"X-Accel-Buffering", b"no"))
    return headers


class _EngineError(Struct):
    message: str = "the engine refused the request"
    type: str = INVALID


class _EngineAnswer(Struct):
    error: _EngineError


def error_in(content: bytes, status: int, dialect: Dialect) -> bytes:
    """The body of an error answer as the record that tells the same."""
    try:
        found = msgspec.json.decode(content, type=_EngineAnswer).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = _EngineError(content.decode("utf-8", "replace")[:1000] or f"the engine answered {status}")
    info = ErrorInfo(message=found.message, type=found.type, code=status, reason="engine_error")
    return error_record(dialect, info)
