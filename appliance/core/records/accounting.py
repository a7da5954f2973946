"""Reads an answer's bytes as they pass, for what the answer cost and for what an error says; holds no answer.

Of an event stream only the current line is held, and a line is decoded only when it has the name of a member that
matters in front of an object. Of a JSON body the beginning and the end are held, as they came: every engine writes
what an answer cost first or last in it, and nothing is looked at before the answer is over.

Sources, as llama-swap 0bdb3720 reads them: ``usage`` (OpenAI, Anthropic), ``timings`` (llama.cpp b11434, overrides
usage) and ``metrics`` (vLLM).
"""

from __future__ import annotations

import re
from collections import deque
from http import HTTPStatus
from typing import Annotated, TypeVar, get_args

import msgspec
from msgspec import Meta, Raw, Struct, field, structs

from appliance.core.bodies.http_message import ContentDecoder
from appliance.core.lenient_json import decoded
from appliance.core.records.activity import Tokens

_MAX = 1 << 40
"""No count of tokens, time or speed comes near; a number beyond is unknown, and the sum of millions fits 64 bits."""

Number = Annotated[int, Meta(ge=0, lt=_MAX)] | Annotated[float, Meta(ge=0, lt=_MAX)]
"""A count or a measurement of an engine. The decoder checks it; -1 stands for none, and for anything else."""
_INFILL = msgspec.json.Decoder(list[Raw])
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
MAX_LINE = 1 << 20
"""Bytes of one line of a stream; a longer one is skipped. A record with usage has a few hundred bytes."""
MAX_HELD = 64 << 10
"""Bytes held of the beginning of a long JSON body, and as many of its end (and what else came in the same piece)."""
MAX_ERROR = 64 << 10
"""Bytes of an error's body that its message is looked for in."""
MAX_MESSAGE = 500
"""Characters of an error's message that a row keeps."""
_NAMES = (b'"usage"', b'"timings"', b'"metrics"')
_OBJECT = re.compile(rb"\s*+:\s*+\{")
_TRIES = 8
"""How many places where a name stands are tried: all but one are inside something else, or there is none at all."""


class Usage(Struct, frozen=True, kw_only=True):
    tokens: Tokens
    prompt: int = -1
    """Tokens of the whole prompt, with those from a cache; -1 if unknown."""
    engine_ms: float = 0.0
    """The engine's own time for prompt and answer; 0 if unknown."""
    answer_ms: float = -1.0
    """The part of it from the first token on; -1 if unknown."""

    def duration_ms(self, wall_ms: float) -> int:
        """The duration in a row: the longer one of our measurement and the engine's."""
        return int(max(wall_ms, self.engine_ms))


_Object = TypeVar("_Object", bound=Struct)


class _Details(Struct):
    cached_tokens: Number = -1


class _UsageObject(Struct):
    prompt_tokens: Number = -1
    input_tokens: Number = -1
    completion_tokens: Number = -1
    output_tokens: Number = -1
    cache_read_input_tokens: Number = -1
    input_tokens_details: _Details | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(Struct, frozen=True):
    prompt_n: Number = -1
    predicted_n: Number = -1
    prompt_ms: Number = -1
    predicted_ms: Number = -1
    prompt_per_second: Number = -1
    predicted_per_second: Number = -1
    cache_n: Number = -1
    draft_n: Number = -1
    draft_n_accepted: Number = -1


class _Drafts(Struct, frozen=True):
    num_draft_tokens: Number = -1
    num_accepted_draft_tokens: Number = -1


class _Metrics(Struct, frozen=True):
    time_to_first_token_ms: Number = -1
    mean_itl_ms: Number = -1
    speculative_decoding: _Drafts | None = None


_NO_TIMINGS, _NO_METRICS = _Timings(), _Metrics()


class _Holder(Struct):
    usage: _UsageObject | None = None


class CostReport(_Holder):
    """The cost of an answer as one JSON object reports it; streams have it within ``response`` and ``message``."""

    timings: _Timings | None = None
    metrics: _Metrics | None = None


class _Record(CostReport):
    response: _Holder | None = None
    message: _Holder | None = None


_REPORT = msgspec.json.Decoder(CostReport)
_RECORD = msgspec.json.Decoder(_Record)


def read_report(text: bytes | Raw) -> CostReport | None:
    """Read a JSON object; a member of an unexpected type is skipped. None: it is not an object."""
    return decoded(_REPORT, text) or _leniently(CostReport, text)


def _leniently(kind: type[_Object], text: bytes | Raw) -> _Object | None:
    """Read an object of which the decoder refused a member: one of a strange type does not cost the others.

    Almost no engine sends such a thing, so all others are read in one step, without a look at each number.
    """
    if (members := decoded(_MEMBERS, text)) is None:
        return None
    read: dict[str, object] = {}
    for each in structs.fields(kind):
        if (raw := members.get(each.name)) is not None:
            inner = [one for one in get_args(each.type) if isinstance(one, type) and issubclass(one, Struct)]
            read[each.name] = _leniently(inner[0], raw) if inner else decoded(each.type, raw)
    return kind(**{name: value for name, value in read.items() if value is not None})


class Ledger(Struct):
    """The reports so far."""

    input: int | float = -1
    output: int | float = -1
    cached: int | float = -1
    apart: bool = False
    """Anthropic's input is what did not come from a cache, OpenAI's is all of it."""
    timings: _Timings = _NO_TIMINGS
    metrics: _Metrics = _NO_METRICS

    def add(self, report: CostReport) -> None:
        """A later positive number of usage replaces an earlier one: streams report in parts, and repeat themselves
        with 0. Timings and metrics are replaced as a whole."""
        self._use(report)
        self.timings = report.timings or self.timings
        self.metrics = report.metrics or self.metrics

    def record(self, data: bytes) -> bool:
        """One data line of a stream. True: it had timings."""
        if (record := decoded(_RECORD, data) or _leniently(_Record, data)) is None:
            return False
        self.add(record)
        for holder in (record.response, record.message):
            if holder is not None:
                self._use(holder)
        return record.timings is not None

    def _use(self, holder: _Holder) -> None:
        if (said := holder.usage) is None:
            return
        prompt = said.input_tokens if said.prompt_tokens < 0 else said.prompt_tokens
        completion = said.output_tokens if said.completion_tokens < 0 else said.completion_tokens
        cached = said.cache_read_input_tokens
        self.apart = self.apart or cached >= 0
        details = said.input_tokens_details or said.prompt_tokens_details
        if cached < 0 and details is not None:
            cached = details.cached_tokens
        if prompt > 0 or self.input < 0:
            self.input = prompt
        if completion > 0 or self.output < 0:
            self.output = completion
        if cached > 0 or self.cached < 0:
            self.cached = cached

    def balance(self) -> Usage:
        """Return the sum. Timings override usage, and metrics fill what neither says."""
        timings = self.timings
        drafted, accepted = timings.draft_n, timings.draft_n_accepted
        prompt_rate, token_rate = timings.prompt_per_second, timings.predicted_per_second
        if self.metrics is not _NO_METRICS:
            if (drafted < 0 or accepted < 0) and (said := self.metrics.speculative_decoding) is not None:
                drafted, accepted = said.num_draft_tokens, said.num_accepted_draft_tokens
            prompt_rate = self._prefill_rate() if prompt_rate < 0 else prompt_rate
            token_rate = self._token_rate() if token_rate < 0 else token_rate
        if drafted < 0 or accepted < 0:  # one without the other says nothing
            drafted = accepted = -1
        apart = self.apart or timings.prompt_n >= 0
        cached = self.cached if timings.cache_n < 0 else timings.cache_n
        fresh = self.input if timings.prompt_n < 0 else timings.prompt_n
        tokens = Tokens(
            cache_tokens=int(cached),
            draft_tokens=int(drafted),
            draft_acc_tokens=int(accepted),
            input_tokens=int(fresh),
            output_tokens=int(self.output if timings.predicted_n < 0 else timings.predicted_n),
            prompt_per_second=float(prompt_rate),
            tokens_per_second=float(token_rate),
        )
        engine_ms = 0.0 if timings is _NO_TIMINGS else max(timings.prompt_ms, 0) + max(timings.predicted_ms, 0)
        prompt = tokens.input_tokens
        if apart and prompt >= 0:
            prompt += max(tokens.cache_tokens, 0)
        return Usage(tokens=tokens, prompt=prompt, engine_ms=float(engine_ms), answer_ms=float(timings.predicted_ms))

    def _prefill_rate(self) -> float:
        """vLLM gives the time to the first token: what was not in the cache has been read in it."""
        milliseconds = self.metrics.time_to_first_token_ms
        fresh = self.input - max(self.cached, 0)
        return fresh / milliseconds * 1000 if milliseconds > 0 and fresh > 0 else -1.0

    def _token_rate(self) -> float:
        """vLLM gives the mean time between two tokens."""
        milliseconds = self.metrics.mean_itl_ms
        return 1000 / milliseconds if milliseconds > 0 else -1.0


def _first_mark(text: bytes, end: int) -> int:
    """Return the place before ``end`` where the first of the names stands in front of an object; -1 if none does.

    The names are searched for one by one: a regular expression for all three is as slow for text without any, and far
    slower for an engine that writes ``"usage":null`` into every record.
    """
    first = -1
    for name in _NAMES:
        at = text.find(name, 0, end)
        while at >= 0 and not _OBJECT.match(text, at + len(name), end):
            at = text.find(name, at + len(name), end)
        if at >= 0:
            first = end = at  # of interest is only what stands before it
    return first


class _StreamReader(Struct):
    """An event stream, line by line: every engine writes a record's JSON on one data line, and so does llama-swap
    read it. Lines end with LF or CR LF; no engine uses a bare CR."""

    ledger: Ledger
    held: bytearray = field(default_factory=bytearray)
    """The beginning of a line."""
    passing_over: bool = False
    """The current line is too long."""

    def feed(self, chunk: bytes) -> None:
        if self.held or self.passing_over:
            end = chunk.find(b"\n") + 1
            if not end:
                self._hold(chunk)
                return
            self._hold(chunk[: end - 1])
            self.end()
            chunk = chunk[end:]
        end = len(chunk) if chunk.endswith(b"\n") else chunk.rfind(b"\n") + 1
        if (mark := _first_mark(chunk, end)) >= 0:
            begin = chunk.rfind(b"\n", 0, mark) + 1
            self._lines(chunk[begin:end])
        if end < len(chunk):
            self._hold(chunk[end:])

    def _lines(self, text: bytes) -> None:
        """Read the lines for reports. llama-server may write timings into every record, and only the last count: the
        search goes backwards and ends at the first hit. Usage comes in parts, so every line is read for it."""
        lines = text.split(b"\n")
        if b'"usage"' in text or b'"metrics"' in text:
            for line in lines:
                self._line(line)
        else:
            any(map(self._line, reversed(lines)))

    def _hold(self, part: bytes) -> None:
        if not self.passing_over:
            self.held += part
            self.passing_over = len(self.held) > MAX_LINE

    def end(self) -> None:
        """The line that is held has ended."""
        if not self.passing_over:
            self._line(bytes(self.held))
        self.held.clear()
        self.passing_over = False

    def _line(self, line: bytes) -> bool:
        """True for one with timings."""
        if len(line) <= MAX_LINE and line.startswith(b"data:") and _first_mark(line, len(line)) >= 0:
            return self.ledger.record(line[5:])
        return False


class _BodyReader(Struct):
    """A JSON body. /infill answers an array, and what it cost is in its last element."""

    ledger: Ledger
    of_last: bool
    beginning: bytes = b""
    last: deque[bytes] = field(default_factory=deque[bytes])
    size: int = 0
    """Bytes of the last pieces."""

    def feed(self, chunk: bytes) -> None:
        self.last.append(chunk)
        self.size += len(chunk)
        while self.size - len(self.last[0]) >= 2 * MAX_HELD:
            gone = self.last.popleft()
            self.size -= len(gone)
            if len(self.beginning) < MAX_HELD:
                self.beginning += gone[: MAX_HELD - len(self.beginning)]

    def end(self) -> None:
        """The body is over, in whatever way."""
        last = b"".join(self.last)
        if not self.beginning and len(last) <= 2 * MAX_HELD:
            elements = decoded(_INFILL, last) if self.of_last else None
            if (report := read_report(elements[-1] if elements else last)) is not None:
                self.ledger.add(report)
                return
        # Too long to be read as a whole, or apparently not JSON: an engine may write NaN into it.
        self._read_beginning(self.beginning or last[:MAX_HELD])
        self._read_end(last[-MAX_HELD:].rstrip())

    def _read_beginning(self, text: bytes) -> None:
        """Members of the outermost object: what stands before one is an object, once it is closed."""
        if not text.lstrip().startswith(b"{"):
            return
        for name in _NAMES:
            at = -1
            for _ in range(_TRIES):
                if (at := text.find(name, at + 1)) < 0:
                    break
                before = text[:at].rstrip().removesuffix(b",")
                if read_report(before + b"}") is not None and (report := _value(text, at)) is not None:
                    self.ledger.add(report)
                    break

    def _read_end(self, text: bytes) -> None:
        """Members of the outermost object: with what follows one, up to the end, it is an object, once it is opened.

        An escaped quote is the only other thing that a name with quotes around it can begin with.
        """
        if self.of_last and text.endswith(b"]"):
            text = text[:-1]
        for name in _NAMES:
            at = len(text)
            for _ in range(_TRIES):
                if (at := text.rfind(name, 0, at)) < 0:
                    break
                if not text.endswith(b"\\", 0, at) and (report := read_report(b"{" + text[at:])) is not None:
                    self.ledger.add(report)
                    break


def _value(text: bytes, at: int) -> CostReport | None:
    """Return the report in the member at ``at``, an object with few others inside; None if it cannot be read."""
    end = at
    for _ in range(_TRIES):
        if (end := text.find(b"}", end) + 1) == 0:
            return None
        if (report := read_report(b"{" + text[at:end] + b"}")) is not None:
            return report
    return None


class TokenCounter:
    """Counts one answer with status 200. Feed it every byte on its way to the client; no input makes it raise.

    ``path`` is the model route; ``streaming`` says that the answer's Content-Type is text/event-stream. What cannot
    be decoded, or is not JSON, leaves everything unknown.
    """

    __slots__ = ("_decoder", "_ledger", "_reader")

    def __init__(self, path: str, *, streaming: bool, content_encoding: str | None = None) -> None:
        self._ledger = Ledger()
        self._reader = (
            _StreamReader(self._ledger)
            if streaming
            else _BodyReader(self._ledger, of_last=path.rstrip("/").endswith("/infill"))
        )
        self._decoder = ContentDecoder(content_encoding) if content_encoding else None

    def feed(self, chunk: bytes) -> None:
        if self._decoder is None:
            self._reader.feed(chunk)
            return
        for piece in self._decoder.feed(chunk):
            self._reader.feed(piece)

    def end(self) -> Usage:
        """The answer is over, in whatever way."""
        self._reader.end()
        return self._ledger.balance()


def count_whole(path: str, body: bytes) -> Usage:
    """Return the result of `TokenCounter` for a whole body without a coding. Most are, and this costs a third."""
    if len(body) <= 2 * MAX_HELD and (report := decoded(_REPORT, body)) is not None:
        ledger = Ledger()
        ledger.add(report)
        return ledger.balance()
    counter = TokenCounter(path, streaming=False)
    counter.feed(body)
    return counter.end()


class ErrorText:
    """The message for the log in an error's body, of which it holds at most MAX_ERROR bytes."""

    def __init__(self, content_encoding: str | None = None) -> None:
        self._decoder = ContentDecoder(content_encoding)
        self._held = bytearray()

    def feed(self, chunk: bytes) -> None:
        if len(self._held) > MAX_ERROR:
            return
        for piece in self._decoder.feed(chunk):
            self._held += piece[: MAX_ERROR + 1 - len(self._held)]

    def end(self, status: int) -> str:
        """Return the engine's message, or the name of the status if it has no readable one."""
        said = decoded(_ErrorBody, bytes(self._held)) if len(self._held) <= MAX_ERROR else None
        return (_message(said) if said else "") or _status_text(status)


Loose = int | float | str | bool | list[object] | dict[str, object] | None


class _ErrorBody(Struct):
    error: Loose = None
    message: Loose = None
    detail: Loose = None


def _message(body: _ErrorBody) -> str:
    nested = body.error.get("message") if isinstance(body.error, dict) else None
    for said in (nested, body.error, body.message, body.detail):
        if isinstance(said, str) and (text := said.strip()):
            return text[:MAX_MESSAGE]
    return ""


def _status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
