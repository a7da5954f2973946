"""The progress of a request under way: its phase, its tokens, its slot, from what is known of it anyway.

An engine says most in the stream itself, where the client asked for that (``timings_per_token``, ``return_progress``),
and in ``GET /slots``. Fields as in llama-server b11434.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.core.records.accounting import Ledger

Held = Literal["waiting", "downloading", "loading"]
"""The thing that a request waits for before an engine has it: its place in the queue, its model's files or load."""
Phase = Literal["waiting", "downloading", "loading", "prompt", "working", "answering"]
"""``prompt``: of a stream nothing has come yet. ``working``: a whole answer, of which only a slot can say more."""
SLOWEST_FIRST: tuple[Phase, ...] = ("waiting", "downloading", "loading", "prompt", "working", "answering")
APART = 0.5
"""Seconds between two requests after which their tasks in the engine surely have the same order."""
BROWSERS = ("Edg", "OPR", "Firefox", "Chrome", "Safari")
"""Their words in a User-Agent; the first that occurs is the browser's own, for each also names those after it."""
MAX_CLIENT = 40


class AnswerSoFar(Struct, frozen=True):
    """The visible part of an answer under way."""

    seconds: float | None = None
    """Since its first byte; None before it."""
    size: int = 0
    latest: bytes = b""
    """Its latest bytes, where it is a stream that can be read."""


class _Decoded(Struct, frozen=True):
    n_decoded: int = 0


class EngineSlot(Struct, frozen=True):
    """One slot of an engine."""

    id: int
    is_processing: bool = False
    id_task: int = -1
    """Rises with every task."""
    n_prompt_tokens: int | None = None
    """The tokens that it holds: of the prompt those from the cache and those read, and then those of the answer."""
    next_token: list[_Decoded] = []

    @property
    def decoded(self) -> int | None:
        return sum(each.n_decoded for each in self.next_token) if self.next_token else None


class RequestProgress(Struct, frozen=True, kw_only=True):
    """The progress of one request. None: nobody has said."""

    phase: Phase
    tokens: int | None = None
    estimated: bool = False
    """The tokens are counted by the size of the answer."""
    tokens_per_second: float | None = None
    prompt_processed: int | None = None
    prompt_total: int | None = None
    slot: int | None = None


def phase_of(held: Held | None, answer: AnswerSoFar, slot: EngineSlot | None = None, *, streams: bool) -> Phase:
    """Return the phase of a request that is ``held`` before any engine, or has this of its answer."""
    if held is not None:
        return held
    if _READING in _last_record(answer.latest):
        return "prompt"
    if answer.seconds is not None or (slot is not None and slot.decoded):
        return "answering"
    return "prompt" if streams or (slot is not None and slot.decoded is not None) else "working"


def progress_of(
    held: Held | None, answer: AnswerSoFar, slot: EngineSlot | None = None, *, streams: bool
) -> RequestProgress:
    """Return all that is known beside the phase as well, which takes several times as long."""
    phase = phase_of(held, answer, slot, streams=streams)
    number = slot.id if slot is not None else None
    if phase == "answering":
        tokens, rate, estimated = _spoken(answer, slot)
        return RequestProgress(phase=phase, tokens=tokens, estimated=estimated, tokens_per_second=rate, slot=number)
    if phase != "prompt":
        return RequestProgress(phase=phase, slot=number if held is None else None)
    if (told := decoded(_TOLD, _last_record(answer.latest))) is not None and told.prompt_progress is not None:
        reading = told.prompt_progress
        return RequestProgress(phase=phase, prompt_processed=reading.processed, prompt_total=reading.total, slot=number)
    read = slot.n_prompt_tokens if slot is not None and slot.decoded is not None else None
    return RequestProgress(phase=phase, prompt_processed=read, slot=number)


def is_before_token(records: bytes) -> bool:
    """True for whole records of a stream with no part of the answer: comments, and how far the prompt is read."""
    last = _last_record(records)
    return not last or _READING in last


def slowest(phases: Sequence[Phase]) -> Phase | None:
    """Return the phase that is furthest from an answer."""
    return next((phase for phase in SLOWEST_FIRST if phase in phases), None)


def paired(came: Sequence[float], slots: Iterable[EngineSlot]) -> list[EngineSlot | None]:
    """Return the slot of each request to one engine, all in the order in which they came to it.

    An engine does not name the request of a slot. So None for all, unless as many slots are busy as there are requests,
    and these came so far apart that their order is sure.
    """
    busy = sorted((slot for slot in slots if slot.is_processing), key=lambda slot: slot.id_task)
    if len(busy) != len(came) or any(later - earlier < APART for earlier, later in pairwise(came)):
        return [None] * len(came)
    return [*busy]


def client_words(agent: str | None, address: str) -> str:
    """Return who asks, in short: the program by its User-Agent, and where it is."""
    program = (agent or "").partition(" ")[0]
    if program.startswith("Mozilla/"):
        program = next((name for name in BROWSERS if f"{name}/" in (agent or "")), program)
        program = {"Edg": "Edge", "OPR": "Opera"}.get(program, program)
    return ", ".join(part for part in (program[:MAX_CLIENT], address) if part)


class _Reading(Struct, frozen=True):
    total: int = 0
    processed: int = 0


class _ToldProgress(Struct, frozen=True):
    prompt_progress: _Reading | None = None


_TOLD = msgspec.json.Decoder(_ToldProgress)
_READING = b'"prompt_progress"'
_RECORD = b"\ndata:"
_COUNTS = b'"timings"', b'"usage"'


def _last_record(latest: bytes) -> bytes:
    """The data of the last whole line that has some."""
    end = latest.rfind(b"\n") + 1
    at = latest.rfind(_RECORD, 0, end) + 1
    return latest[at + 5 : latest.find(b"\n", at)] if at or latest.startswith(_RECORD[1:], 0, end) else b""


def _spoken(answer: AnswerSoFar, slot: EngineSlot | None) -> tuple[int | None, float | None, bool]:
    """The tokens of the answer, how many come in a second, and whether they are estimated."""
    tokens = rate = None
    record = _last_record(answer.latest)
    if any(name in record for name in _COUNTS):
        ledger = Ledger()
        ledger.record(record)
        said = ledger.balance().tokens
        tokens = said.output_tokens if said.output_tokens > 0 else None
        rate = said.tokens_per_second if said.tokens_per_second > 0 else None
    if tokens is None and slot is not None:
        tokens = slot.decoded or None  # it was asked a moment ago, perhaps before the first token
    estimated = tokens is None
    if estimated:
        tokens = _estimated(answer)
    if rate is None and tokens and answer.seconds:
        rate = tokens / answer.seconds
    return tokens, rate, estimated and tokens is not None


def _estimated(answer: AnswerSoFar) -> int | None:
    """As many as the records that the answer has, if all are as long as the latest ones: engines write one a token."""
    latest = answer.latest
    first = 0 if latest.startswith(_RECORD[1:]) else latest.find(_RECORD) + 1
    last = latest.rfind(_RECORD) + 1
    if last <= first:
        # The length of a record is known once the next one begins.
        return 1 if first or latest.startswith(_RECORD[1:]) else None
    return round(answer.size * latest.count(_RECORD, first) / (last - first))
