"""The record of every request for a model: tokens, times, the activity row, the capture.

A request pays for references to what passes anyway. Everything else is made of them later, in batches: when the loop
has time, or when too much waits. Every look at rows, captures or counters settles what is waiting first, so that
nobody can tell. Captures are compressed when the loop has time; until then they are kept as they are, at the budget's
expense.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import trio
from msgspec import UNSET, structs

from appliance.core.answers.continuation import is_over
from appliance.core.bodies.head import RequestHead
from appliance.core.records.accounting import ErrorText, TokenCounter, Usage, count_whole
from appliance.core.records.activity import CLIENT_LEFT, Query, with_captures
from appliance.core.records.cache_misses import MAX_NAME, CacheRoom, CacheUse, CacheUses, CacheVerdict, SlotNews
from appliance.core.records.captures import CaptureBuffer, CapturedBody, CapturedExchange, Packing, captured_parts
from appliance.core.records.progress import AnswerSoFar, client_words, is_before_token
from appliance.core.records.spans import Step, StepName, TracedRequest, parts_text
from appliance.core.runs.inward import UNWATCHED, ProgressWatch
from appliance.store.activity import Activity, ActivityTable
from appliance.traffic.inflight import InFlightEntry
from appliance.traffic.metrics import Metrics
from appliance.traffic.request import Headers, Passing, Request, Sink
from appliance.traffic.tracing import Tracer
from appliance.trio_parts import beside, persist
from appliance.wire import NO_TOKENS, ActivityPage, Capture, Row

PACKING_PAUSE = 0.5
"""Seconds before the first batch, and between two looks whether the loop has time."""
PACKING_BATCH = 1 << 20
"""Bytes compressed in one go; some ten milliseconds in a thread of its own."""
SHARE = 40
"""One part in so many of a core's time goes into compressing, however much there is of it."""
BUSY = 0.25
"""The share of its time that the loop works when it has no time for anything that can wait. A request each 5 ms takes
a tenth; one client that asks again and again takes half or more."""
_T = TypeVar("_T")
log = logging.getLogger(__name__)
_NO_HEAD = RequestHead()
LOOK_EVERY = 4096
"""Bytes of an answer between two looks at them. A look costs 5 us whether one token has passed or sixteen, and what
it looks at becomes one piece, which saves the 40 bytes that each chunk takes besides its own."""
PAUSE = 0.05
"""Seconds between two looks whether the loop has time for what waits to be written down."""
BATCH = 128
"""Requests that are written down before others have a turn; each takes some 3 to 8 us."""
MOST = 2000
"""Requests that wait at most. Each holds some 1.5 KiB beside its bodies. With twice the rows and more bytes than are
usually kept, the oldest are mostly such that newer ones push out: of those only the tokens are counted."""
MOST_BYTES = 8 << 20
"""Bytes of bodies that wait at most."""


class Load:
    """Measures how busy the thread of the loop is. A look costs two clocks."""

    def __init__(self) -> None:
        self._since, self._worked = time.monotonic(), time.thread_time()

    def is_light(self) -> bool:
        """True if the thread has worked for less than `BUSY` of the time since the last look."""
        since, worked = self._since, self._worked
        self._since, self._worked = time.monotonic(), time.thread_time()
        return self._worked - worked < BUSY * (self._since - since)


class Packer:
    """Owns the compressing for one `CaptureBuffer` after another: another budget makes another one."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self.captures = CaptureBuffer(0)
        self._load = load
        self._open: dict[CapturedBody, None] = {}
        self._wake = trio.Event()

    def wake(self) -> None:
        """There is something to compress among the captures."""
        self._wake.set()

    def open(self, body: CapturedBody) -> None:
        """Compress what there is of an answer under way."""
        self._open[body] = None
        self._wake.set()

    def close(self, body: CapturedBody) -> None:
        """The answer is over. Where no capture is made of it, nobody would use what is compressed."""
        self._open.pop(body, None)

    async def run(self) -> None:
        """Compress until cancelled; the rest is lost with the captures."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            load, pause = self._load(), PACKING_PAUSE
            while self._open or self.captures.is_raw:
                await trio.sleep(pause)
                began, pause = time.monotonic(), PACKING_PAUSE
                if batch := self.batch(light=load.is_light()):
                    packed = await trio.to_thread.run_sync(_pack, batch, abandon_on_cancel=True)
                    for packing, result in zip(batch, packed, strict=True):
                        packing.put(result)
                    # A pause in proportion to the work takes the same share of a core on every machine. A fixed pause
                    # would be too short for a slow one, which would then compress without end.
                    pause = (SHARE - 1) * (time.monotonic() - began)

    def batch(self, *, light: bool = True) -> list[Packing]:
        """Return the next piece of work. Answers under way come first: no budget but their own holds their memory.

        Others are compressed only under a ``light`` load: under another one most are gone before it is their turn.
        """
        batch, left = list[Packing](), PACKING_BATCH
        while self._open and left > 0:
            body = next(iter(self._open))
            # An answer leaves the set before its work: it comes back by itself when more of it has passed.
            del self._open[body]
            if not body.given_up:
                batch.append(body.packing())
                left -= body.raw
        return batch + self.captures.waiting(left) if light else batch


def _pack(batch: Sequence[Packing]) -> list[bytes]:
    return [packing.work() for packing in batch]


class Learner(Protocol):
    """Learns what a request has cost. Returns the fate of its conversation's context until then."""

    def learn(self, usage: Usage) -> SlotNews: ...


class Record:
    """One request on a model route. The pipeline fills in what it learns; `Recorder.finish` writes it down."""

    __slots__ = (
        "admitted",
        "began",
        "body",
        "build",
        "cost",
        "entry",
        "fault",
        "first_byte_at",
        "first_token_at",
        "head",
        "headers",
        "known",
        "loaded",
        "metadata",
        "model",
        "news",
        "outlives",
        "path",
        "placed",
        "request",
        "requested",
        "steps",
        "watch",
    )

    def __init__(self, request: Request, path: str) -> None:
        self.request = request
        self.path = path
        self.model = ""
        """The real id; until it is known, the name that was asked for."""
        self.requested = ""
        """The name that the request's target has, once that is known."""
        self.known = False
        self.loaded = False
        """Its model had to be loaded for it."""
        self.admitted = False
        """Its sender was let in: a log that strangers can fill tells nothing."""
        self.body: bytes | None = b""
        """None once the request is over and the body is too large to be captured."""
        self.metadata: dict[str, str] = {}
        self.entry: InFlightEntry | None = None
        self.watch: ProgressWatch = UNWATCHED
        """Notified of its progress, if the program itself asks."""
        self.fault: str | None = None
        """Why the answer broke off after its head had gone out."""
        self.outlives = False
        """Its generation goes on without its client, and is written down when that ends."""
        self.began = time.perf_counter()
        self.first_byte_at: float | None = None
        self.steps: tuple[Step, ...] = ()
        """Waits, tools and fallbacks; a plain request has none."""
        self.first_token_at: float | None = None
        """The time at which the first record of a stream came that is part of the answer."""
        self.build = ""
        """The id of the engine that has the request."""
        self.head = _NO_HEAD
        """The part of its body that was read."""
        self.placed: Learner | None = None
        """Its slot in its model's process."""
        self.news = SlotNews()
        self.cost: Usage | str | None = None
        """The cost of its answer, or the error's text, where it was read at once."""
        self.headers: Headers = ()
        """The program's own fields in the answer's head, whatever way the request takes."""

    def begin_step(self, name: StepName, label: str = "", *, ago: float = 0.0) -> Step:
        """Note a step that began ``ago`` seconds ago; its maker ends it."""
        step = Step(name, time.perf_counter() - ago, label=label)
        self.steps += (step,)
        return step


class RecordingSink(Passing):
    """Passes an answer on, and keeps what passes until it has been looked at.

    A chunk costs a reference, an addition and a comparison; the look itself comes every `LOOK_EVERY` bytes, and for
    most answers that are not streams only once all is over.
    """

    __slots__ = (
        "_answer", "_coding", "_fresh", "_headers", "_looked_at", "_next_look", "_packer", "_reader", "_record",
        "_status", "_streaming", "passed",
    )  # fmt: skip

    def __init__(self, inner: Sink, record: Record, packer: Packer) -> None:
        self.inner = inner
        self.passed = 0
        """Bytes of body, with what the program itself has told the client."""
        self._record = record
        self._packer = packer
        self._fresh: list[bytes] = []  # what has not been looked at
        self._looked_at = b""  # the piece before it
        self._next_look = 0
        self._status = 0
        self._headers: Headers = ()
        self._streaming = False
        self._coding: str | None = None  # known from the first look on, which for most answers is the last
        self._reader: TokenCounter | ErrorText | None = None
        self._answer: CapturedBody | bytes | None = None  # for the capture

    def start(self, status: int, headers: Headers) -> None:
        if self._record.headers:
            headers = (*headers, *self._record.headers)
        self.inner.start(status, headers)
        self._status = status
        self._headers = headers
        self._streaming = self.inner.event_stream
        if self._record.entry is not None:
            self._record.entry.started(headers, self)

    def push(self, data: bytes) -> bool:
        """Hand these bytes on; False: they are taken, but `flush` before the next."""
        self._fresh.append(data)
        self.passed += len(data)
        if self.passed >= self._next_look:
            self._look()
        return self.inner.push(data)

    def push_aside(self, data: bytes) -> bool:
        """Push text of the program itself for a waiting client. It is not part of the model's answer. As `push`."""
        self.passed += len(data)
        return self.inner.push(data)

    def _look(self) -> None:
        # The first push always comes here, because the next look is due at 0 bytes: the time of the first byte is
        # noted. Until a record is part of the answer, the next push comes here too. The look itself waits, unless there
        # is much to look at: most answers are over before it is worth its price.
        record, self._next_look = self._record, self.passed + LOOK_EVERY
        if record.first_token_at is None:
            now = time.perf_counter()
            if record.first_byte_at is None:
                record.first_byte_at = now
            if self._streaming and is_before_token(self._fresh[-1]):
                self._next_look = 0
            else:
                record.first_token_at = now
            if sum(map(len, self._fresh)) < LOOK_EVERY:
                return
        if self._reader is None:
            self._reader = self._new_reader()
            limit = self._packer.captures.limit
            if limit and self._status == 200 and captured_parts(self._record.path).response:
                self._answer = CapturedBody(limit)
        piece = self._piece()
        self._reader.feed(piece)
        if isinstance(self._answer, CapturedBody) and self._answer.feed(piece):
            self._packer.open(self._answer)

    def _piece(self) -> bytes:
        """Take the bytes that have not been looked at."""
        piece = self._looked_at = b"".join(self._fresh)
        self._fresh.clear()
        return piece

    def so_far(self) -> AnswerSoFar:
        """Return what is to be seen of the answer, of a stream its latest `LOOK_EVERY` bytes or more."""
        if (began := self._record.first_byte_at) is None:
            return AnswerSoFar()
        readable = self._streaming and _value(self._headers, b"content-encoding") is None
        latest = self._looked_at + b"".join(self._fresh) if readable else b""
        return AnswerSoFar(time.perf_counter() - began, self.passed, latest)

    def outcome(self, status: int) -> int:
        """Return the status to write down for a request that ended with ``status``.

        Official clients close their connection at a stream's last record, without waiting for the end of the body. An
        engine that is slower with that end makes it look as if they had left early.
        """
        if status == CLIENT_LEFT and self._streaming and is_over(self._looked_at + b"".join(self._fresh)):
            return self._status
        return status

    def release(self, status: int) -> int:
        """Keep no more than row and capture need. Return the bytes of bodies that the capture takes, more or less."""
        record, parts = self._record, captured_parts(self._record.path)
        record.entry = None
        del self.inner  # a connection, or all bytes of a stream that can be resumed
        size = len(record.body) if parts.request and record.body else 0
        if isinstance(self._answer, CapturedBody):
            self._packer.close(self._answer)
        if status != 200:
            self._answer = None
        elif isinstance(self._answer, CapturedBody):
            size += self._answer.held
        elif parts.response:
            size += self.passed
        return size

    def _new_reader(self) -> TokenCounter | ErrorText:
        self._coding = _value(self._headers, b"content-encoding")
        if self._status != 200:
            return ErrorText(self._coding)
        return TokenCounter(self._record.path, streaming=self._streaming, content_encoding=self._coding)

    def usage_or_error(self, status: int) -> Usage | str | None:
        """Return the cost of the answer, or the error's text, once, when all is over. None: there was no answer."""
        if not self._status:
            return None
        piece = self._piece()
        if isinstance(self._answer, CapturedBody):
            self._answer.feed(piece)
        reader = self._reader
        if reader is None:
            self._answer = piece
            if status == 200 and not self._streaming and _value(self._headers, b"content-encoding") is None:
                return count_whole(self._record.path, piece)
            reader = self._new_reader()
        reader.feed(piece)
        return reader.end(status) if isinstance(reader, ErrorText) else reader.end()

    def row(self, found: Usage | str | None, status: int, seconds: float, ended: datetime, cache: CacheVerdict) -> Row:
        """Return the request's row of the activity log."""
        record, metadata, request = self._record, self._record.metadata, self._record.request
        error, tokens, milliseconds, first_token = UNSET, NO_TOKENS, round(seconds * 1000), -1
        if isinstance(found, str):
            error = found
        elif found is not None and status == 200:
            tokens, milliseconds = found.tokens, found.duration_ms(seconds * 1000)
            first_token = self.first_token_ms(found, seconds)
            if cache.why:
                metadata = {**metadata, "prompt_cache": cache.why}
        if record.steps:  # of a plain request the row says all by itself
            usage = found if isinstance(found, Usage) else None
            traced = self.traced(usage, record.path, status, record.began + seconds, 0.0)
            if parts := parts_text(traced):
                metadata = {**metadata, "parts": parts}
        if status == CLIENT_LEFT:
            error = "the client left before the answer was complete"
        if record.fault is not None:
            error = record.fault
        return Row(
            timestamp=ended,
            model=record.model,
            req_path=record.path,
            resp_content_type=_value(self._headers, b"content-type") or "",
            resp_status_code=status,
            tokens=tokens,
            duration_ms=milliseconds,
            error_msg=error,
            metadata=metadata or UNSET,
            first_token_ms=first_token,
            client=client_words(request.header(b"user-agent"), request.client),
            build=record.build,
            conversation=cache.conversation,
            cache_miss=cache.miss or "",
            again_tokens=cache.again,
        )

    def traced(self, usage: Usage | None, route: str, status: int, ended: float, epoch: float) -> TracedRequest:
        """Return the facts that its trace is made of."""
        record = self._record
        return TracedRequest(
            route=route,
            requested=record.requested or record.model,
            model=record.model,
            known=record.known,
            streaming=self._streaming,
            host=record.request.header(b"host") or "",
            status=status,
            fault=record.fault,
            usage=usage,
            metadata=record.metadata,
            steps=record.steps,
            began=record.began,
            first_token=record.first_token_at,
            build=record.build,
            ended=ended,
            epoch=epoch,
        )

    def first_token_ms(self, usage: Usage, seconds: float) -> int:
        """Return when the first token was there. Of an answer in one piece only its engine knows."""
        record = self._record
        if self._streaming:
            at = record.first_token_at
            return round((at - record.began) * 1000) if at is not None else -1
        return max(round(seconds * 1000 - usage.answer_ms), 0) if usage.answer_ms >= 0 else -1

    def exchange(self, status: int) -> CapturedExchange:
        """Return its capture, once its cost was read (`usage_or_error`); a failure's holds only the request."""
        record, parts = self._record, captured_parts(self._record.path)
        body = record.body if parts.request else None
        if status != 200:
            return CapturedExchange(record.path, record.request.headers, body)
        answer = self._answer if parts.response else None
        return CapturedExchange(record.path, record.request.headers, body, self._headers, answer, self._coding)


def _value(headers: Headers, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in headers:
        if len(key) == len(name) and key.lower() == name:
            return value.decode("latin-1")
    return None


class Aside(Passing):
    """The same answer for those who tell a client that it has to wait: neither its first byte nor in its capture."""

    def __init__(self, sink: RecordingSink) -> None:
        super().__init__(sink)
        self._sink = sink

    def push(self, data: bytes) -> bool:
        return self._sink.push_aside(data)


def aside(sink: Sink) -> Sink:
    """Return the sink for messages to a waiting client; see `Aside`."""
    return Aside(sink) if isinstance(sink, RecordingSink) else sink


_Ended = tuple[Record, RecordingSink, str, int, float, float, int, int, CacheRoom | None, bool]
"""A request that is over and not written down yet: with its route, its status, when it ended, that in Unix time, the
bytes that it holds, those of them that surely find a place among the captures, its process's room for prompts, and
whether no other request was under way at its end."""


class Recorder:
    """Writes records down, and answers questions about them. Made by `open_recorder`.

    Every question settles first: a client that has its answer and asks then finds its row.
    """

    def __init__(self, activity: Activity, load: Callable[[], Load] = Load) -> None:
        self.metrics = Metrics()
        self.tracer = Tracer(self.metrics)
        self._activity = activity
        self._packer = Packer(load)
        self._load = load
        self.session_headers: Sequence[bytes] = ()
        """The headers that name a client's conversation, in lower case."""
        self._uses = CacheUses()
        self._ended: deque[_Ended] = deque()
        self._held = 0  # bytes of their bodies
        self._sure = 0  # those of them that surely find a place among the captures
        self._wake = trio.Event()
        self._full = trio.Event()
        self._listeners: set[Callable[[int], None]] = set()

    @property
    def captures(self) -> CaptureBuffer:
        """Replaced when the configuration changes its size."""
        return self._packer.captures

    @captures.setter
    def captures(self, captures: CaptureBuffer) -> None:
        self.settle()
        self._packer.captures = captures

    def watch(self, record: Record, sink: Sink) -> RecordingSink:
        return RecordingSink(sink, record, self._packer)

    def finish(self, record: Record, sink: RecordingSink, route: str, status: int) -> None:
        """The request is over, and nothing passes any more; it is written down later."""
        limit = self._packer.captures.limit
        if record.body is not None and len(record.body) > limit:
            record.body = None
        if record.placed is not None:
            self._learn(record, sink, status)
        room, alone = self.metrics.rooms.get(record.model), record.entry is None or record.entry.owner.is_empty
        ended, size = self._ended, sink.release(status)
        sure = size if 2 * size <= limit else 0  # a larger capture may be too large by itself
        ended.append((record, sink, route, status, time.perf_counter(), time.time(), size, sure, room, alone))
        self._held += size
        self._sure += sure
        if len(ended) == 1:
            self._wake.set()
        elif len(ended) >= MOST or self._held >= MOST_BYTES:
            self._full.set()

    def conversation(self, request: Request, head: RequestHead) -> str:
        """Return the id of the request's conversation; empty where it names none."""
        return (head.conversation or next(filter(None, map(request.header, self.session_headers)), ""))[:MAX_NAME]

    def settle(self, most: int | None = None) -> None:
        """Write down what is over, all or the first ``most``. Never raises: a log must not end what it tells of."""
        ended = self._ended
        for _ in range(len(ended) if most is None else min(most, len(ended))):
            one = ended.popleft()
            try:
                self._write_down(one)
            except Exception:
                log.exception("a request for %s could not be written down; this is a bug", one[0].path)
        if self.captures.is_raw:
            self._packer.wake()

    def follow(self, on_row: Callable[[int], None]) -> Callable[[], None]:
        """Call ``on_row`` with the id of every row from now on, until the result is called. It must not block."""
        self.settle()
        self._listeners.add(on_row)
        return lambda: self._listeners.discard(on_row)

    async def page(self, query: Query) -> ActivityPage:
        """Rows of the activity log. Raises Busy while another program has locked its file."""
        self.settle()
        page = await self._activity.page(query)
        return structs.replace(page, data=with_captures(page.data, self.captures.has))

    async def rows(self, query: Query) -> tuple[Row, ...]:
        """Return the rows of a page alone. Raises as `page`."""
        return with_captures(await self.read(lambda table: table.rows(query)), self.captures.has)

    async def read(self, question: Callable[[ActivityTable], _T]) -> _T:
        """Ask the activity log, with every request that is over. Raises as `page`."""
        self.settle()
        return await self._activity.read(question)

    async def capture(self, row_id: int) -> Capture | None:
        """Return the capture of the request with this row."""
        self.settle()
        read = self.captures.find(row_id)
        return await trio.to_thread.run_sync(read) if read is not None else None

    async def run(self) -> None:
        """Write down what ends, when there is time or too much waits, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persist, "compressing captures", self._packer.run)
            nursery.start_soon(persist, "sending traces", self.tracer.run)
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._ended:
                    # With too much waiting, one batch brings the queue below its limit, and the rest waits for a quiet
                    # moment again. In a quiet moment all is written, in batches, so that requests have their turn in
                    # between.
                    most = BATCH if await self._wait_for_time() else len(self._ended)
                    for _ in range(0, most, BATCH):
                        self.settle(BATCH)
                        await trio.lowlevel.checkpoint()

    async def _wait_for_time(self) -> bool:
        """Wait until the loop has had little to do for a moment, or too much waits: True.

        Rows that outlive the program, and those with readers, wait for that moment only.
        """
        load, self._full = self._load(), trio.Event()
        while True:
            with trio.move_on_after(PAUSE):
                await self._full.wait()
                return True
            if self._activity.keep is None or self._listeners or load.is_light():
                return False

    def _write_down(self, ended: _Ended) -> None:
        """Newer requests may have pushed out a row or a capture before it is made; then it is not made."""
        record, sink, route, status, now, at, size, sure, room, alone = ended
        self._held -= size
        self._sure -= sure
        seconds, activity = now - record.began, self._activity
        found = record.cost if record.cost is not None else sink.usage_or_error(status)
        cache = self._judged(record, found, status, now, room, alone=alone)
        # Under a load that never ends the queue holds more rows than the log keeps. A row that newer ones would push
        # out is not made at all, and only its number is used up; its tokens are counted anyway. The same holds
        # for captures below.
        if activity.keep is not None and len(self._ended) >= activity.keep:
            row_id = activity.pass_over()
        else:
            row_id = activity.add(sink.row(found, status, seconds, datetime.fromtimestamp(at, UTC), cache))
        captures = self._packer.captures
        if self._sure < captures.limit:
            captures.add(row_id, sink.exchange(status))
        if self._listeners:
            for on_row in tuple(self._listeners):
                on_row(row_id)
        if self.tracer.on:
            usage = found if isinstance(found, Usage) else None
            self.tracer.add(record.request.headers, sink.traced(usage, route, status, now, at - now))
        if record.known:
            first = None if record.first_byte_at is None else record.first_byte_at - record.began
            self.metrics.request_done(record.model, route, status, seconds, first)
            if status == 200 and isinstance(found, Usage):
                if (first_token := sink.first_token_ms(found, seconds)) >= 0:
                    self.metrics.first_token(record.model, first_token / 1000)
                tokens = found.tokens
                self.metrics.tokens(record.model, tokens.input_tokens, tokens.output_tokens, tokens.cache_tokens)

    def _learn(self, record: Record, sink: RecordingSink, status: int) -> None:
        """Let the table of slots know what the answer says before the next request asks for a slot."""
        placed, record.placed = record.placed, None
        record.cost = sink.usage_or_error(status)
        cost = record.cost if status == 200 else None
        if placed is not None and isinstance(cost, Usage):
            record.news = placed.learn(cost)

    def _judged(
        self,
        record: Record,
        found: Usage | str | None,
        status: int,
        ended: float,
        room: CacheRoom | None,
        *,
        alone: bool,
    ) -> CacheVerdict:
        """Find the conversation of a request that an engine may have worked on, and how its prompt's cache fared."""
        usage = found if isinstance(found, Usage) else None
        if not record.known or (usage is None and status != CLIENT_LEFT):
            return CacheVerdict()
        use = CacheUse(
            conversation=self.conversation(record.request, record.head),
            prompt=usage.prompt if usage is not None and status == 200 else -1,
            cached=usage.tokens.cache_tokens if usage is not None else -1,
            began=record.began,
            ended=ended,
            build=record.build,
            room=room,
            loaded=record.loaded,
            off=record.head.uncached,
            moved="fallback" in record.metadata,
            alone=alone,
            news=record.news,
        )
        return self._uses.judge(record.model, use)


@asynccontextmanager
async def open_recorder(activity: Activity, load: Callable[[], Load] = Load) -> AsyncGenerator[Recorder]:
    """Leaving the block writes down what is waiting. ``load`` makes what tells how busy the loop is."""
    recorder = Recorder(activity, load)
    try:
        async with beside(recorder.run):
            yield recorder
    finally:
        recorder.settle()
        await recorder.tracer.flush()
