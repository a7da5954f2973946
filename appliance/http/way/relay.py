"""An engine's answer on its way to the client: its bytes, its header names, and an honest end when it breaks off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import trio
from msgspec import Struct

from appliance.core.answers.continuation import Partial, Refusal, SoFar
from appliance.core.bodies.sse import Dialect, ErrorInfo, Event, WholeRecords, encode, error_record
from appliance.core.parts import UNREADABLE, without
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


class Relay:
    """Passes one answer on. ``trail`` hears of the records of a stream; ``headers`` go out behind the engine's own.

    A stream is passed on where its bytes arrive, in one call without a task switch (`platform.poller`): a task that is
    in `run` wakes when the answer ends, breaks off, or finds the client's socket full. `begin`, `hear` and
    `push_rest` pass a whole answer on without a task, and `run` takes over wherever they have come to.
    """

    __slots__ = ("_begun", "_dialect", "_headers", "_records", "_response", "_sink", "_trail", "broken")

    def __init__(
        self,
        response: Response,
        sink: Sink,
        dialect: Dialect = Dialect.OPENAI,
        trail: Trail | None = None,
        headers: Headers = (),
    ) -> None:
        self.broken: Exception | None = None
        """What `run` is to raise in place of reading on."""
        self._begun = False
        self._dialect = dialect
        self._headers = headers
        self._response = response
        self._sink = sink
        self._trail = trail
        self._records = WholeRecords()

    @property
    def _take(self) -> Callable[[bytes], bool]:  # not kept: a method that its own object holds is a cycle
        return self._take_records if self._response.streaming else self._sink.push

    def begin(self) -> bool:
        """Start the answer. False: the client has had comments of a stream, and this is not one; only `run` can."""
        if self._sink.status is None:
            self._sink.start(self._response.status, [*_passed_on(self._response), *self._headers])
        elif not self._begun and (not self._response.streaming or self._response.status != 200):
            return False
        self._begun = True
        return True

    def hear(self, data: bytes) -> bool:
        """Bytes off the wire; see `Response.hear`."""
        return self._response.hear(self._take, data)

    def push_rest(self) -> None:
        """The answer is `Response.complete`: what was held of a last record goes out."""
        if rest := self._records.rest():
            self._sink.push(rest)

    async def run(self) -> None:
        """Return when the client's side has taken all. Raises UpstreamFailed when the answer breaks off.

        A broken event stream is cut where its last record ended, so that an error record can follow. Where that is not
        possible, the client's connection is broken off, here or by `explain`.
        """
        if self.broken is not None and not self._begun:
            raise self.broken
        if not self.begin():
            await _answer_late(self._response, self._sink, self._dialect)
            return
        try:
            await self._sink.flush()
            if self.broken is not None:
                raise self.broken
            while not await self._response.each(self._take):
                await self._sink.flush()
            self.push_rest()
        except (UpstreamFailed, trio.Cancelled):
            if self._records.torn:
                self._sink.abort()
            raise
        await self._sink.end()

    def _take_records(self, data: bytes) -> bool:
        if not (ready := self._records.feed(data)):
            return True
        if self._trail is not None:
            self._trail.add(ready)
        return self._sink.push(ready)


async def _answer_late(response: Response, sink: Sink, dialect: Dialect) -> None:
    """The client has had comments, so whatever the engine says has to become a record."""
    content = await response.read(MAX_LATE_ANSWER)
    if response.status >= 400:
        await sink.write(error_in(content, response.status, dialect))
    else:
        await sink.write(encode(Event(content.decode("utf-8", "replace"))))
    await sink.end()


def _passed_on(response: Response) -> list[tuple[bytes, bytes]]:
    headers = without(response.headers, _DROPPED, (b"access-control-",))
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
    except UNREADABLE:
        found = _EngineError(content.decode("utf-8", "replace")[:1000] or f"the engine answered {status}")
    info = ErrorInfo(message=found.message, type=found.type, code=status, reason="engine_error")
    return error_record(dialect, info)
