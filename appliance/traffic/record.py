"""The record of a request for a model, and the sink that fills it in while the answer passes.

A request pays for references to what passes anyway. Everything else is made of them later, by the `Recorder`.
"""

from __future__ import annotations

import time
from typing import Protocol

from appliance.core.answers.families import is_over
from appliance.core.bodies.head import RequestHead
from appliance.core.records.accounting import ErrorText, TokenCounter, Usage, count_whole
from appliance.core.records.activity import CLIENT_LEFT
from appliance.core.records.cache_misses import SlotNews
from appliance.core.records.captures import CapturedBody, CapturedExchange, captured_parts
from appliance.core.records.ended import EndedRequest, Step, StepName
from appliance.core.records.progress import AnswerSoFar, is_before_token
from appliance.core.runs.inward import UNWATCHED, ProgressWatch
from appliance.traffic.inflight import InFlightEntry
from appliance.traffic.packing import Packer
from appliance.traffic.request import Headers, Passing, Request, Sink
from appliance.traffic.translated import TranslatedSink

LOOK_EVERY = 4096
"""Bytes of an answer between two looks at them. A look costs 5 us whether one token has passed or sixteen, and what
it looks at becomes one piece, which saves the 40 bytes that each chunk takes besides its own."""
_NO_HEAD = RequestHead()


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
        "sent",
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
        self.sent: bytes | None = None
        """The body that the engine took, where that was a repaired one; None as above."""
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
        size = len(record.body or b"") + len(record.sent or b"") if parts.request else 0
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

    @property
    def content_type(self) -> str:
        """That of the answer; empty without one."""
        return _value(self._headers, b"content-type") or ""

    def facts(self, found: Usage | str | None, route: str, status: int, now: float, epoch: float) -> EndedRequest:
        """Return the facts of the request, which is over. ``found`` is what `usage_or_error` has found."""
        record = self._record
        # By position, in the order of its fields: names would cost a plain request as much as four of its counters.
        return EndedRequest(
            route,
            record.request.headers,
            record.requested or record.model,
            record.model,
            record.known,
            self._streaming,
            status,
            record.fault,
            found if isinstance(found, str) else None,
            found if isinstance(found, Usage) else None,
            record.metadata,
            record.steps,
            record.build,
            record.began,
            record.first_byte_at,
            record.first_token_at,
            now,
            epoch,
        )

    def exchange(self, status: int) -> CapturedExchange:
        """Return its capture, once its cost was read (`usage_or_error`); a failure's holds only the request."""
        record, parts = self._record, captured_parts(self._record.path)
        body = record.body if parts.request else None
        if status != 200:
            return CapturedExchange(record.path, record.request.headers, body)
        answer = self._answer if parts.response else None
        sent, headers = record.sent if parts.request else None, record.request.headers
        return CapturedExchange(record.path, headers, body, self._headers, answer, self._coding, sent)


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
    """Return the sink for messages to a waiting client; see `Aside`. They are not translated."""
    while isinstance(sink, TranslatedSink):
        sink = sink.inner
    return Aside(sink) if isinstance(sink, RecordingSink) else sink
