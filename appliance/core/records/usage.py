"""The cost of an answer as engines report it, and the row of numbers that it becomes.

Sources, as llama-swap 0bdb3720 reads them: ``usage`` (OpenAI, Anthropic), ``timings`` (llama.cpp b11434, overrides
usage) and ``metrics`` (vLLM).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from appliance.wire import Tokens

_MAX = 1 << 40
"""No count of tokens, time or speed comes near; a number beyond is unknown, and the sum of millions fits 64 bits."""

Loose = int | float | str | bool | list[object] | dict[str, object] | None
"""Whatever an engine sends: a member of a strange type is unknown and does not cost the others."""


class Usage(Struct, frozen=True, kw_only=True):
    tokens: Tokens
    engine_ms: float = 0.0
    """Time that the engine says it took for prompt and answer; 0 where it does not say."""

    def duration_ms(self, wall_ms: float) -> int:
        """The duration in a row: the longer one of our measurement and the engine's."""
        return int(max(wall_ms, self.engine_ms))


class _UsageObject(Struct):
    prompt_tokens: Loose = None
    input_tokens: Loose = None
    completion_tokens: Loose = None
    output_tokens: Loose = None
    cache_read_input_tokens: Loose = None
    input_tokens_details: Loose = None
    prompt_tokens_details: Loose = None


class _Timings(Struct):
    prompt_n: Loose = None
    predicted_n: Loose = None
    prompt_ms: Loose = None
    predicted_ms: Loose = None
    prompt_per_second: Loose = None
    predicted_per_second: Loose = None
    cache_n: Loose = None
    draft_n: Loose = None
    draft_n_accepted: Loose = None


class _Metrics(Struct):
    time_to_first_token_ms: Loose = None
    mean_itl_ms: Loose = None
    speculative_decoding: Loose = None


_NO_TIMINGS, _NO_METRICS = _Timings(), _Metrics()


class _Holder(Struct):
    usage: _UsageObject | None = None


class Report(_Holder):
    """The cost of an answer as one JSON object reports it; streams have it within ``response`` and ``message``."""

    timings: _Timings | None = None
    metrics: _Metrics | None = None


class _Record(Report):
    response: _Holder | None = None
    message: _Holder | None = None


class _RawHolder(Struct):
    usage: Raw = Raw(b"null")


class _RawRecord(_RawHolder):
    timings: Raw = Raw(b"null")
    metrics: Raw = Raw(b"null")
    response: Raw = Raw(b"null")
    message: Raw = Raw(b"null")


_REPORT = msgspec.json.Decoder(Report)
_RECORD = msgspec.json.Decoder(_Record)
_INFILL = msgspec.json.Decoder(list[Raw])
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_T = TypeVar("_T", bound=Struct)


def decode_loosely(raw: bytes | Raw, kind: type[_T]) -> _T | None:
    """The text as ``kind``, or None for what is not JSON, or not an object."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        return None


def read_report(text: bytes | Raw) -> Report | None:
    """Read a JSON object; a member of an unexpected type is skipped. None: it is not an object."""
    try:
        return _REPORT.decode(text)
    except _UNREADABLE:
        raw = decode_loosely(text, _RawRecord)
    return None if raw is None else _piecemeal(raw)


def read_last_report(text: bytes) -> Report | None:
    """The same of the last element of the array that the text is."""
    try:
        elements = _INFILL.decode(text)
    except _UNREADABLE:
        return None
    return read_report(elements[-1]) if elements else None


def _piecemeal(raw: _RawRecord) -> Report:
    return Report(
        usage=decode_loosely(raw.usage, _UsageObject),
        timings=decode_loosely(raw.timings, _Timings),
        metrics=decode_loosely(raw.metrics, _Metrics),
    )


def _count(value: Loose) -> int:
    """The value as a count; -1 where it is none."""
    if (type(value) is int or type(value) is float) and 0 <= value < _MAX:
        return int(value)
    return -1


def _rate(value: Loose) -> float:
    if (type(value) is float or type(value) is int) and 0 <= value < _MAX:
        return float(value)
    return -1.0


def _member(value: Loose, name: str) -> Loose:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, int | float) else None


class Ledger:
    """The reports so far."""

    __slots__ = ("_cached", "_input", "_metrics", "_output", "_timings")

    def __init__(self) -> None:
        self._input = -1
        self._output = -1
        self._cached = -1
        self._timings = _NO_TIMINGS
        self._metrics = _NO_METRICS

    def add(self, report: Report) -> None:
        """A later positive number of usage replaces an earlier one: streams report in parts, and repeat themselves
        with 0. Timings and metrics are replaced as a whole."""
        self._use(report)
        self._timings = report.timings or self._timings
        self._metrics = report.metrics or self._metrics

    def record(self, data: bytes) -> bool:
        """One data line of a stream. True: it had timings."""
        try:
            record = _RECORD.decode(data)
        except _UNREADABLE:
            return self._record_piecemeal(data)
        self._use(record)
        for holder in (record.response, record.message):
            if holder is not None:
                self._use(holder)
        self._timings = record.timings or self._timings
        self._metrics = record.metrics or self._metrics
        return record.timings is not None

    def _record_piecemeal(self, data: bytes) -> bool:
        if (raw := decode_loosely(data, _RawRecord)) is None:
            return False
        report = _piecemeal(raw)
        self._use(report)
        for part in (raw.response, raw.message):
            if (holder := decode_loosely(part, _RawHolder)) is not None:
                self._use(_Holder(decode_loosely(holder.usage, _UsageObject)))
        self._timings = report.timings or self._timings
        self._metrics = report.metrics or self._metrics
        return report.timings is not None

    def _use(self, holder: _Holder) -> None:
        if (said := holder.usage) is None:
            return
        prompt = said.input_tokens if said.prompt_tokens is None else said.prompt_tokens
        completion = said.output_tokens if said.completion_tokens is None else said.completion_tokens
        cached = said.cache_read_input_tokens
        for details in (said.input_tokens_details, said.prompt_tokens_details):
            if cached is None and details is not None:
                cached = _member(details, "cached_tokens")
        self._input = _later(self._input, _count(prompt))
        self._output = _later(self._output, _count(completion))
        self._cached = _later(self._cached, _count(cached))

    def balance(self) -> Usage:
        """Return the sum. Timings override usage, and metrics fill what neither says."""
        timings = self._timings
        drafted, accepted = _both(timings.draft_n, timings.draft_n_accepted)
        prompt_rate, token_rate = _rate(timings.prompt_per_second), _rate(timings.predicted_per_second)
        if self._metrics is not _NO_METRICS:
            if drafted < 0:
                said = self._metrics.speculative_decoding
                drafted, accepted = _both(_member(said, "num_draft_tokens"), _member(said, "num_accepted_draft_tokens"))
            prompt_rate = _known(prompt_rate, self._prefill_rate())
            token_rate = _known(token_rate, self._token_rate())
        tokens = Tokens(
            cache_tokens=_known(_count(timings.cache_n), self._cached),
            draft_tokens=drafted,
            draft_acc_tokens=accepted,
            input_tokens=_known(_count(timings.prompt_n), self._input),
            output_tokens=_known(_count(timings.predicted_n), self._output),
            prompt_per_second=prompt_rate,
            tokens_per_second=token_rate,
        )
        engine_ms = max(_rate(timings.prompt_ms), 0.0) + max(_rate(timings.predicted_ms), 0.0)
        return Usage(tokens=tokens, engine_ms=engine_ms)

    def _prefill_rate(self) -> float:
        """vLLM gives the time to the first token: what was not in the cache has been read in it."""
        milliseconds = _rate(self._metrics.time_to_first_token_ms)
        fresh = self._input - max(self._cached, 0)
        return fresh / milliseconds * 1000 if milliseconds > 0 and fresh > 0 else -1.0

    def _token_rate(self) -> float:
        """vLLM gives the mean time between two tokens."""
        milliseconds = _rate(self._metrics.mean_itl_ms)
        return 1000 / milliseconds if milliseconds > 0 else -1.0


def _both(drafted: Loose, accepted: Loose) -> tuple[int, int]:
    """Drafted and accepted tokens; one without the other says nothing."""
    if drafted is None or accepted is None:
        return -1, -1
    counts = _count(drafted), _count(accepted)
    return counts if min(counts) >= 0 else (-1, -1)


def _later(before: int, now: int) -> int:
    return now if now > 0 or before < 0 else before


_N = TypeVar("_N", int, float)


def _known(value: _N, otherwise: _N) -> _N:
    return value if value >= 0 else otherwise
