"""What is noted of every request for a model while its answer passes: tokens, times, the activity row, the capture."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import trio
from msgspec import UNSET

from appliance.core.accounting import ErrorText, TokenCounter
from appliance.core.captures import CaptureBuffer, CaptureWriter, Exchange, captured_headers, captured_parts, pack
from appliance.core.inward import UNWATCHED, Watch
from appliance.core.usage import Usage
from appliance.store.activity import Activity
from appliance.traffic.inflight import Entry
from appliance.traffic.metrics import Metrics
from appliance.traffic.request import Request
from appliance.traffic.rows import ActivityRows
from appliance.traffic.sink import Headers, Passing, Sink
from appliance.wire.activity import NO_TOKENS, Row

CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the answer; nginx's number for it."""


class Record:
    """One request on a model route. The pipeline fills in what it learns; `Recorder.finish` writes it down."""

    def __init__(self, request: Request, path: str) -> None:
        self.request = request
        self.path = path
        self.model = ""
        """The real id; until it is known, the name that was asked for."""
        self.known = False
        self.admitted = False
        """Its sender was let in: a log that strangers can fill tells nothing."""
        self.body = b""
        self.metadata: dict[str, str] = {}
        self.entry: Entry | None = None
        self.watch: Watch = UNWATCHED
        """Hears how far it is: who asks from inside the program."""
        self.outlives = False
        """Its generation goes on without its client, and is written down when that ends."""
        self.began = trio.current_time()
        self.first_byte_at: float | None = None


class RecordingSink(Passing):
    """Passes an answer on, and looks at it on the way."""

    def __init__(self, inner: Sink, record: Record, captures: CaptureBuffer) -> None:
        super().__init__(inner)
        self._record = record
        self._captures = captures
        self._counter: TokenCounter | None = None
        self._error: ErrorText | None = None
        self._writer: CaptureWriter | None = None
        self._headers: Headers = ()
        self._content_type = ""

    def start(self, status: int, headers: Headers) -> None:
        self._headers = headers
        self._content_type = _value(headers, b"content-type")
        encoding = _value(headers, b"content-encoding") or None
        self.inner.start(status, headers)
        if status == 200:
            self._counter = TokenCounter(
                self._record.path, streaming=self.inner.event_stream, content_encoding=encoding
            )
            if self._captures.limit and captured_parts(self._record.path).response:
                self._writer = CaptureWriter(self._captures.limit, encoding)
        else:
            self._error = ErrorText(encoding)
        if self._record.entry is not None:
            self._record.entry.started(headers)

    def push(self, data: bytes) -> bool:
        record = self._record
        if record.first_byte_at is None:
            record.first_byte_at = trio.current_time()
        if self._counter is not None:
            self._counter.feed(data)
        elif self._error is not None:
            self._error.feed(data)
        if self._writer is not None:
            self._writer.feed(data)
        if record.entry is not None:
            record.entry.wrote(len(data))
        return self.inner.push(data)

    def push_aside(self, data: bytes) -> bool:
        """What the program itself tells a waiting client: no part of the model's answer."""
        if self._record.entry is not None:
            self._record.entry.wrote(len(data))
        return self.inner.push(data)

    def row(self, status: int, seconds: float) -> Row:
        """What the activity log keeps of the request, now that it is over."""
        record = self._record
        usage = self._counter.end() if self._counter is not None and status == 200 else None
        error = self._error.end(status) if self._error is not None else None
        if status == CLIENT_LEFT:
            error = "the client left before the answer was complete"
        return Row(
            timestamp=datetime.now(UTC),
            model=record.model,
            req_path=record.path,
            resp_content_type=self._content_type,
            resp_status_code=status,
            tokens=usage.tokens if usage is not None else NO_TOKENS,
            duration_ms=_duration(usage, seconds),
            error_msg=error or UNSET,
            metadata=record.metadata or UNSET,
        )

    def exchange(self, status: int) -> Exchange:
        """What the captures keep of it; of a failure only the request."""
        record = self._record
        limit = self._captures.limit
        parts = captured_parts(record.path)
        answered = status == 200
        return Exchange(
            req_path=record.path,
            req_headers=captured_headers(record.request.headers),
            req_body=pack(record.body, limit) if parts.request else None,
            resp_headers=captured_headers(self._headers, decoded=True) if answered else None,
            resp_body=self._writer.end() if self._writer is not None and answered else None,
        )


class Aside(Passing):
    """The same answer for those who tell a client that it has to wait: neither its first byte nor in its capture."""

    def __init__(self, sink: RecordingSink) -> None:
        super().__init__(sink)
        self._sink = sink

    def push(self, data: bytes) -> bool:
        return self._sink.push_aside(data)


def aside(sink: Sink) -> Sink:
    """Where to write what is told to a waiting client; see `Aside`."""
    return Aside(sink) if isinstance(sink, RecordingSink) else sink


class Recorder:
    """Writes records down. ``captures`` is replaced when the configuration changes its size."""

    def __init__(self, activity: Activity, metrics: Metrics, rows: ActivityRows) -> None:
        self.captures = CaptureBuffer(0)
        self._activity = activity
        self._metrics = metrics
        self._rows = rows

    def watch(self, record: Record, sink: Sink) -> RecordingSink:
        return RecordingSink(sink, record, self.captures)

    def finish(self, record: Record, sink: RecordingSink, route: str, status: int) -> None:
        """The request is over. Never raises: a log must not end what it tells of."""
        now = trio.current_time()
        row = sink.row(status, now - record.began)
        row_id = self._activity.add(row)
        if self.captures.limit:
            self.captures.add(row_id, sink.exchange(status))
        self._rows.added(row_id)
        if record.known:
            first = None if record.first_byte_at is None else record.first_byte_at - record.began
            self._metrics.request_done(record.model, route, status, now - record.began, first)
            if status == 200:
                tokens = row.tokens
                self._metrics.tokens(record.model, tokens.input_tokens, tokens.output_tokens, tokens.cache_tokens)


def _value(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), "")


def _duration(usage: Usage | None, seconds: float) -> int:
    return usage.duration_ms(seconds * 1000) if usage is not None else round(seconds * 1000)
