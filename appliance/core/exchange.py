"""One exchange with an engine, without I/O: bytes of its answer in, calls on the client's side and on the engine's out.

Theory. An exchange begins when its request is on its way, and ends exactly once, with `Io.done`. Between the two it
gets the events below from the poller, or from a task where there is none. It never waits, so no event comes while
another is handled, and every decision is made on facts that still hold. One exception: a client may be found gone while
it is given something, and `cancel` then comes from within that call.

Back-pressure is one bit. A client that is *full* has taken what it was given, and wants nothing more before it is
drained. The exchange then pauses the engine, whose own socket fills up behind it. A client whose first words are still
being written (`Io.answering`) counts as full.

The engine is released before the client has taken the last byte: a slow reader holds up neither the engine's slot nor
its connection. A connection is reusable only if its answer ended in good order with nothing behind it.

| state | engine_bytes | engine_ended | client_drained | cancel |
|---|---|---|---|---|
| HEAD: no final head yet | HEAD, or what the head decides | OVER, failed or `Stale` | - | OVER |
| HELD: the client is not ready for the head | - (paused) | - (paused) | BODY or DRAINING | OVER |
| BODY: content passes | BODY, FULL or DRAINING | OVER, or DRAINING where the end ends the body | - | OVER |
| FULL: the client is full | - (paused) | - (paused) | BODY | OVER |
| DRAINING: the answer is complete | - (released) | - (released) | OVER, whole | OVER |
| OVER | nothing | nothing | nothing | nothing |

Content passes unchanged, without its framing. Of an event stream only whole records leave, so that an error record can
follow a torn one. Where the client has had words of a stream already (comments while it waited, the first half of
an answer whose engine died), an answer that is not a stream has to become one record; see `_late`. A refusal that is
held (`RelayOptions.holds_refusals`) goes the same way, and ends as the failure `Refused` instead of a record.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache
from typing import Protocol

import msgspec
from msgspec import Struct

from appliance.core.answers.families import Family
from appliance.core.answers.going_on import BrokenAnswer, Refusal, SecondHalf, StreamSoFar
from appliance.core.bodies.http_message import (
    HOP_BY_HOP,
    BodyError,
    BodyReader,
    Chunked,
    HeadError,
    ResponseHead,
    Sized,
    UntilClose,
    body_of,
    read_response,
)
from appliance.core.bodies.sse import Dialect, ErrorInfo, SseEvent, UnframedRecords, WholeRecords, encode, error_record
from appliance.core.headers import EVENTS, Headers, without
from appliance.core.lenient_json import UNREADABLE
from appliance.errors import UpstreamFailed

MAX_HEAD = 1 << 16
"""Bytes of an answer's head; llama-server's is a few hundred."""
MAX_LATE = 16 << 20
"""Bytes of a plain answer that has to become one record."""
MAX_REFUSAL = 1 << 20
"""Bytes of a refusal that is held; a longer one, or one that does not tell its length, passes as it is."""
MAX_TRAIL = 1 << 19
"""Bytes of a stream that are kept as they came, some 1700 tokens; of older ones only the text is."""
SWITCHING = 101
_OF_ITS_SERVER = (b"server", b"date", b"x-accel-buffering")
"""Headers that speak of the engine's own server."""
_UNBUFFERED = (b"X-Accel-Buffering", b"no")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([1-9][0-9]{0,14})\r\n")


class Stale(Exception):
    """A connection that had carried another request was closed before the first byte: the request was not read."""


class Declined(Exception):
    """The server does not have what it was asked for, or not now: it has not begun, and another one may be asked."""


class Refused(Exception):
    """The server refuses the request: ``status`` is 400 or more, and nothing of this answer has reached the client."""

    def __init__(self, status: int, headers: Headers, content: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.content = status, headers, content


class AnswerHead(Struct, frozen=True):
    """The meaning of an answer's head. ``headers`` keep their case; hop-by-hop ones are gone."""

    status: int
    headers: list[tuple[bytes, bytes]]
    streaming: bool
    """An event stream follows."""
    stays: bool
    """The server leaves the connection open behind the answer."""
    parsed: ResponseHead
    """As it came."""

    def body(self, method: str) -> BodyReader:
        """The framing of its body. Raises BodyError."""
        return body_of(method, self.status, self.parsed.headers)


def read_answer_head(raw: bytes) -> AnswerHead:
    """Read one head, which ends with the empty line. Raises HeadError."""
    parsed = read_response(raw)
    headers: list[tuple[bytes, bytes]] = []
    streaming, stays = False, parsed.version == b"1.1"
    for header in parsed.headers:
        name = header[0].lower()
        if name not in HOP_BY_HOP:
            headers.append(header)
            if name == b"content-type" and header[1].startswith(EVENTS):
                streaming = True
        elif name == b"connection" and b"close" in header[1].lower():
            stays = False
    return AnswerHead(parsed.status, headers, streaming, stays, parsed)


def take_head(received: bytes, *, upgrade: bool = False) -> tuple[AnswerHead | None, bytes]:
    """The final head in these bytes and what came behind it; None and the bytes to keep while it is not whole.

    Interim heads (1xx) are dropped; a 101 is final behind an ``upgrade``. Raises HeadError.
    """
    while (end := received.find(b"\r\n\r\n") + 4) > 3:
        head, received = read_answer_head(received[:end]), received[end:]
        if head.status >= 200 or (upgrade and head.status == SWITCHING):
            return head, received
    if len(received) > MAX_HEAD:
        raise HeadError("its head is too long")
    return None, received


class _Relayed(Struct, frozen=True):
    """A head as the client gets it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    streaming: bool
    stays: bool
    length_at: int = -1
    """The place of its Content-Length among ``headers``, where another one may stand; -1: it has chunks."""


@lru_cache(maxsize=512)
def _usual(before: bytes, behind: bytes) -> _Relayed | None:
    """The meaning of a head whose length stands between these two; ``behind`` is empty where none was found.

    Nearly every answer begins like one before it, but for its length, and to read its head is a fifth of the work on
    it. Only the usual framings are remembered: one Content-Length in its usual spelling, or chunks. None: anything
    else, which is read anew each time.
    """
    try:
        head = read_answer_head(before + b"1" + behind if behind else before)
        head.body("POST")
    except (HeadError, BodyError):
        return None
    names = [name.lower() for name, _ in head.parsed.headers]
    framings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if head.status < 200 or head.status in (204, 304) or framings != ((1, 0) if behind else (0, 1)):
        return None
    headers = _relayed_headers(head)
    at = next((at for at, (name, _) in enumerate(headers) if name.lower() == b"content-length"), -1)
    return _Relayed(head.status, headers, head.streaming, head.stays, at)


def _relayed_headers(head: AnswerHead) -> list[tuple[bytes, bytes]]:
    headers = without(head.headers, _OF_ITS_SERVER, (b"access-control-",))
    if head.streaming:
        headers.append(_UNBUFFERED)
    return headers


class Trail:
    """The part of a stream that a client has, in case its engine dies; without a reader only whether there is any.

    Nothing is decoded before it is needed, or MAX_TRAIL is reached: then the oldest records are, one for each new one.
    """

    __slots__ = ("_clock", "_held", "_reader", "_size", "began")

    def __init__(self, reader: StreamSoFar | None, clock: Callable[[], float]) -> None:
        self.began: float | None = None
        """When the first record has passed, by ``clock``."""
        self._clock = clock
        self._reader = reader
        self._held: deque[bytes] = deque()
        self._size = 0

    @property
    def reads(self) -> bool:
        return self._reader is not None

    def add(self, records: bytes) -> None:
        """These have passed. Called for every chunk: it has to be cheap."""
        if self.began is None:
            self.began = self._clock()
        if self._reader is not None:
            self._held.append(records)
            self._size += len(records)
            if self._size > MAX_TRAIL:
                self._read(self._reader, MAX_TRAIL)

    def partial(self) -> BrokenAnswer | Refusal:
        """The text so far; asked for only where it `reads`."""
        if self._reader is None:
            return Refusal("it was not kept")
        self._read(self._reader, 0)
        return self._reader.partial()

    def _read(self, reader: StreamSoFar, left: int) -> None:
        while self._size > left:
            records = self._held.popleft()
            self._size -= len(records)
            reader.feed(records)


class ExchangeClient(Protocol):
    """The client's side, a part of every sink of the program. Nothing here waits.

    To give it something may show that the client has left: `Exchange.cancel` may be called meanwhile.
    """

    @property
    def status(self) -> int | None:
        """None until `start`."""
        ...

    def start(self, status: int, headers: Headers) -> None: ...

    def push(self, data: bytes) -> bool:
        """Give it bytes of the body. False: they are taken, and it is full."""
        ...

    def finish(self) -> bool:
        """The answer is whole. False: the client has not taken all of it."""
        ...

    def abort(self) -> None:
        """Break the answer off, so that nobody takes it for whole."""
        ...


class Io(Protocol):
    """The engine's side, and the maker of the exchange. Nothing here waits, or calls back at once."""

    def answering(self) -> bool:
        """The head of the answer is here. False: `Exchange.on_client_drained` when the client may have it."""
        ...

    def when_drained(self) -> None:
        """Call `Exchange.on_client_drained` once the client has taken all. The engine is paused, or released."""
        ...

    def pause(self) -> None:
        """Receive nothing more of the engine."""
        ...

    def resume(self) -> None:
        """Receive again."""
        ...

    def release(self, *, reusable: bool, failure: Exception | None = None) -> None:
        """Release the engine; `done` gets ``failure`` later. If it is not ``reusable``, its connection is closed at
        once: that is the only way to tell llama-server that nobody wants the answer.
        """
        ...

    def done(self, failure: Exception | None) -> None:
        """It is over. None: the client has the whole answer. Else UpstreamFailed, `Stale`, or what it was cancelled
        with; the client has had whole records only, or was aborted.
        """
        ...


class RelayOptions(Struct, frozen=True, kw_only=True):
    """The way in which an answer is passed on. ``label`` names the engine in errors."""

    label: str
    method: str = "POST"
    dialect: Dialect = Dialect.OPENAI
    family: Family | None = None
    """The kind of a model's answer; None: a stream may end anywhere."""
    headers: Headers = ()
    """More of them, behind the engine's own."""
    trail: Trail | None = None
    """Gets the part of a stream that has passed."""
    splicer: SecondHalf | None = None
    """The answer is the rest of one that has begun."""
    declines: bool = False
    """A 404 or 503 does not pass: the exchange fails with `Declined`."""
    holds_refusals: bool = False
    """An answer of 400 or more does not pass: the exchange fails with `Refused`. Comments may have passed before it."""


class ExchangeState(Enum):
    HEAD = auto()
    HELD = auto()
    BODY = auto()
    FULL = auto()
    DRAINING = auto()
    OVER = auto()


class Exchange:
    """``reused``: the connection has carried another request. Every method is an event, and total over all states."""

    __slots__ = (
        "_body",
        "_client",
        "_head",
        "_held",
        "_io",
        "_late",
        "_options",
        "_records",
        "_refused",
        "_reused",
        "_splicer",
        "_trail",
        "received",
        "state",
    )

    def __init__(self, options: RelayOptions, client: ExchangeClient, io: Io, *, reused: bool = False) -> None:
        self.state = ExchangeState.HEAD
        self.received = 0
        """Bytes behind the head so far, however they are framed."""
        self._options = options
        self._client = client
        self._io = io
        self._reused = reused
        self._trail, self._splicer = options.trail, options.splicer
        self._held = b""  # of a head that is not whole; later what came behind it, until the client is ready
        self._head: _Relayed | None = None
        self._body: BodyReader | None = None
        self._records: WholeRecords | None = None  # of a stream that passes as it is
        self._late: bytearray | None = None  # of an answer that becomes one record, or the failure `Refused`
        self._refused = False

    # ---- events ------------------------------------------------------------------------------------------------------

    def on_engine_bytes(self, data: bytes) -> bool:
        """Bytes have come. False: no more of them are wanted now. Every chunk of every stream passes here."""
        if self.state is not ExchangeState.BODY:
            return self._on_head_bytes(data) if self.state is ExchangeState.HEAD else False
        body, records, room = self._body, self._records, True
        assert body is not None
        self.received += len(data)
        try:
            content = body.feed(data)
            if content:
                if records is not None:
                    content = records.feed(content)
                    if self._trail is not None and content:
                        self._trail.add(content)
                elif self._late is not None or self._splicer is not None:
                    content = self._translated(content)
                room = self._client.push(content) if content else True
                if self.state is not ExchangeState.BODY:
                    return False  # the client has left while it was given this
            if body.complete:
                return self._complete()
        except Exception as error:  # noqa: BLE001  it becomes the answer to its client
            return self._broke(error)
        if not room:
            self.state = ExchangeState.FULL
            self._io.pause()
            self._io.when_drained()
        return room

    def on_engine_ended(self, *, broken: bool = False) -> None:
        """The other side has closed the connection, or that is ``broken``."""
        if self.state is ExchangeState.HEAD:
            # The request is sent again only in this case: the connection was used before, and not a byte has come on
            # it. Then its server has closed it without reading. On a new connection, or behind a first byte, the
            # request may have been carried out, and a second time could do it twice.
            if self._reused and not self._held:
                self._end(Stale())
            elif broken:
                self._fail("it broke the connection")
            elif self._held:
                self._fail("its answer is not HTTP (it ends in the middle of the head)")
            else:
                self._fail("it closed the connection without an answer")
        elif self.state is ExchangeState.BODY and broken:
            self._fail("it broke the connection")
        elif self.state is ExchangeState.BODY:
            assert self._body is not None
            try:
                self._body.end()
                self._complete(reusable=False)
            except Exception as error:  # noqa: BLE001  as above
                self._broke(error)

    def on_client_drained(self) -> None:
        """The client has taken all that it was given, or is ready for the head."""
        match self.state:
            case ExchangeState.FULL:
                self.state = ExchangeState.BODY
                self._io.resume()
            case ExchangeState.HELD:
                if self._begin():
                    self._io.resume()
            case ExchangeState.DRAINING:
                self._end(None)
            case ExchangeState.HEAD | ExchangeState.BODY | ExchangeState.OVER:
                pass

    def cancel(self, why: Exception) -> None:
        """End the request: the client has left, or another party cancels it."""
        self._end(why)

    # ---- the head ----------------------------------------------------------------------------------------------------

    def _on_head_bytes(self, data: bytes) -> bool:
        self._held = received = self._held + data if self._held else data
        try:
            if not self._reads_usual_head(received):
                head, self._held = take_head(received)
                if head is None:
                    return True
                self._body = head.body(self._options.method)
                self._head = _Relayed(head.status, _relayed_headers(head), head.streaming, head.stays)
            if self._options.declines and self._head is not None and self._head.status in (404, 503):
                return self._end(Declined(f"{self._options.label} declines"))
            if self._options.holds_refusals and self._is_short_refusal():
                held, self._held, self.state = self._held, b"", ExchangeState.BODY
                self._late, self._refused = bytearray(), True
                return self.on_engine_bytes(held)
            if self._io.answering():
                return self._begin()
        except Exception as error:  # noqa: BLE001  as above
            return self._broke(error)
        self.state = ExchangeState.HELD
        return False

    def _reads_usual_head(self, received: bytes) -> bool:
        """Read a head that is like one before it, but for its length. False: this head is not."""
        end = received.find(b"\r\n\r\n") + 4
        if end < 4 or self._options.method == "HEAD":
            return False
        length = _LENGTH.search(received, 0, end)
        if length is None:
            usual = _usual(received[:end], b"")
        else:
            usual = _usual(received[: length.start(1)], received[length.end(1) : end])
        if usual is None:
            return False
        if length is None:
            self._body, self._head = Chunked(), usual
        else:
            # The remembered head is shared by all exchanges, so it is copied before its length changes.
            headers = usual.headers.copy()
            headers[usual.length_at] = headers[usual.length_at][0], length[1]
            self._body = Sized(int(length[1]))
            self._head = _Relayed(usual.status, headers, usual.streaming, usual.stays)
        self._held = received[end:]
        return True

    def _begin(self) -> bool:
        """Pass the head on, and what has come behind it. As `on_engine_bytes`."""
        head, options, client = self._head, self._options, self._client
        assert head is not None
        assert self._body is not None
        held, self._held, self.state = self._held, b"", ExchangeState.BODY
        try:
            # Either nothing has reached the client, and it gets this head as it is. Or it has a stream already: an
            # answer that is not one then becomes one record, and a stream follows on by its records, spliced where it
            # is the rest of a first half.
            if client.status is None and self._splicer is None:
                client.start(head.status, [*head.headers, *options.headers] if options.headers else head.headers)
                self._records = self._new_records() if head.streaming else None
            elif not head.streaming or head.status != 200:
                self._late = bytearray()
            elif self._splicer is None:
                self._records = self._new_records()
            else:
                client.push(self._followed(self._splicer.begin()))
        except Exception as error:  # noqa: BLE001  as above
            return self._broke(error)
        return self.on_engine_bytes(held) if held or self._body.complete else self.state is ExchangeState.BODY

    def _is_short_refusal(self) -> bool:
        sized = isinstance(self._body, Sized) and self._body.left <= MAX_REFUSAL and self._splicer is None
        return sized and self._head is not None and self._head.status >= 400

    def _new_records(self) -> WholeRecords:
        return UnframedRecords() if isinstance(self._body, UntilClose) else WholeRecords()

    # ---- the body ----------------------------------------------------------------------------------------------------

    def _translated(self, content: bytes) -> bytes:
        """Return the bytes that leave where a body does not pass as it is."""
        if self._late is not None:
            self._late += content
            if len(self._late) > MAX_LATE:
                raise UpstreamFailed(self._options.label, f"its answer is longer than {MAX_LATE} bytes")
            return b""
        assert self._splicer is not None
        ready = self._followed(self._splicer.feed(content))
        if self._splicer.broken:
            raise UpstreamFailed(self._options.label, "its stream has a record that is too long")
        return ready

    def _followed(self, ready: bytes) -> bytes:
        if self._trail is not None and ready:
            self._trail.add(ready)
        return ready

    def _complete(self, *, reusable: bool = True) -> bool:
        """The engine has said all."""
        head, records = self._head, self._records
        assert head is not None
        if records is not None and self._options.family is not None and (missing := records.missing()):
            return self._fail(missing)
        # The state changes before any call: `push` and `finish` may find that the client has left, and `cancel` then
        # comes from within them. The engine is released in front of the last bytes, so that the next request can have
        # its slot and its connection while this client still reads.
        self.state = ExchangeState.DRAINING
        self._io.release(reusable=reusable and head.stays)
        if records is not None and (rest := records.rest()):
            self._client.push(rest)
        if self._late is not None and self.state is ExchangeState.DRAINING:
            content = bytes(self._late)
            if self._refused:
                return self._end(Refused(head.status, head.headers, content))
            self._client.push(self._record(content, head.status))
        if self.state is not ExchangeState.DRAINING:
            return False  # the client has left
        whole = self._client.finish()
        if whole and self.state is ExchangeState.DRAINING:
            self._end(None)
        elif self.state is ExchangeState.DRAINING:
            self._io.when_drained()
        return False

    def _record(self, content: bytes, status: int) -> bytes:
        """An answer that is not a stream, for a client that has had the beginning of one."""
        if status >= 400 or self._splicer is not None:
            return error_in(content, status, self._options.dialect)
        return encode(SseEvent(content.decode("utf-8", "replace")))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _broke(self, error: Exception) -> bool:
        match error:
            case BodyError() if self.state is ExchangeState.HEAD:
                return self._fail(f"its answer is not HTTP ({error})")
            case BodyError():
                return self._fail(f"its answer ended early or is garbled: {error}")
            case HeadError():
                return self._fail(f"its answer is not HTTP ({error})")
            case _:  # what the client's side refuses, or a bug
                return self._end(error)

    def _fail(self, why: str) -> bool:
        return self._end(UpstreamFailed(self._options.label, why))

    def _end(self, failure: Exception | None) -> bool:
        if self.state is ExchangeState.OVER:
            return False
        # OVER comes before the calls, so that a `cancel` from within them finds nothing to do. Only a torn record is
        # aborted: behind a whole one the caller can still write an error record, or go on with another engine.
        released, self.state = self.state is ExchangeState.DRAINING, ExchangeState.OVER
        if not released:
            self._io.release(reusable=False, failure=failure)
            if self._records is not None and self._records.torn:
                self._client.abort()
        io = self._io
        del self._io  # each holds the other: both would stay until Python looks for cycles
        io.done(failure)
        return False


class _EngineError(Struct):
    message: str = "the engine refused the request"
    type: str = "invalid_request_error"


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
