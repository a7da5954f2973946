"""An engine's answer on its way to the client: its bytes, its header names, and an honest end when it breaks off."""

from __future__ import annotations

from collections import deque

import msgspec
import trio
from msgspec import Struct

from appliance.core.partial_answer import Partial, Refusal, SoFar
from appliance.core.slash import Family
from appliance.core.sse import PING, Dialect, ErrorInfo, Event, WholeRecords, encode, error_record
from appliance.errors import UpstreamFailed
from appliance.http.way.errors import INVALID
from appliance.traffic.sink import Headers, Sink
from appliance.upstream.client import Response

MAX_LATE_ANSWER = 16 << 20
"""Bytes of a plain answer that has to be turned into one record, because its stream has begun already."""

MAX_HELD = 1 << 19
"""Bytes of a stream that are held as they came, some 1700 tokens; of older ones only the text is kept."""

EVENT_STREAM = (b"Content-Type", b"text/event-stream")
UNBUFFERED = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))
"""Tells proxies on the way to pass a stream on as it comes."""
_DROPPED = (b"server", b"date", b"x-accel-buffering")
"""Response headers that speak of the engine's own server; hop-by-hop ones are gone already."""


class Pinger:
    """Keeps a stream alive while the engine has not begun to answer: comments, at least every ``interval`` seconds."""

    def __init__(self, sink: Sink, interval: float) -> None:
        self._sink = sink
        self._interval = interval
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Starts the answer as an event stream when the first comment is due."""
        with self._scope:
            await trio.sleep(self._interval)
            if self._sink.status is None:
                await self._sink.start(200, (EVENT_STREAM, *UNBUFFERED))
            while True:
                await self._sink.write(PING)
                await trio.sleep(self._interval)

    def ready(self) -> None:
        """The model is there; its answer may still take long."""

    def stop(self) -> None:
        self._scope.cancel()


class Trail:
    """What has been relayed of one stream, in case that it has to be continued. Without a family: only that it was.

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
        """What has been said; asked only where it `reads`."""
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

    ``trail`` hears of the records of a stream; ``headers`` go out behind the engine's own.

    A broken event stream is cut where its last record ended, so that an error record can follow; after anything else
    that has begun, the connection is broken too.
    """
    if sink.status is not None:
        await _relay_late(response, sink, dialect, trail)
        return
    await sink.start(response.status, [*_passed_on(response), *headers])
    if response.streaming:
        await _relay_records(response, sink, trail)
    else:
        await _relay_bytes(response, sink)
    await sink.end()


async def _relay_bytes(response: Response, sink: Sink) -> None:
    try:
        while chunk := await response.receive():
            await sink.write(chunk)
    except UpstreamFailed:
        sink.abort()
        raise


async def _relay_records(response: Response, sink: Sink, trail: Trail | None) -> None:
    records = WholeRecords()
    try:
        while chunk := await response.receive():
            if ready := records.feed(chunk):
                await sink.write(ready)
                if trail is not None:
                    trail.add(ready)
    except (UpstreamFailed, trio.Cancelled):
        if records.torn:
            sink.abort()
        raise
    if rest := records.rest():
        await sink.write(rest)


async def _relay_late(response: Response, sink: Sink, dialect: Dialect, trail: Trail | None) -> None:
    """The client has had comments, so whatever the engine says has to become records."""
    if response.streaming and response.status == 200:
        await _relay_records(response, sink, trail)
    else:
        content = await response.read(MAX_LATE_ANSWER)
        if response.status >= 400:
            await sink.write(error_in(content, response.status, dialect))
        else:
            await sink.write(encode(Event(content.decode("utf-8", "replace"))))
    await sink.end()


def _passed_on(response: Response) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in response.headers if not _is_dropped(name.lower())]
    if response.streaming:
        headers.append((b"X-Accel-Buffering", b"no"))
    return headers


def _is_dropped(name: bytes) -> bool:
    return name in _DROPPED or name.startswith(b"access-control-")


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
