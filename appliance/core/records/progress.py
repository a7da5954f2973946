"""The progress of a request under way: its phase, its tokens, its slot, from what is known of it anyway.

An engine says most in the stream itself, where the client asked for that (``timings_per_token``, ``return_progress``),
and in ``GET /slots``. Fields as in llama-server b11434.
"""

from __future__ import annotations

import re
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


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of one request. None: nobody has said."""

    phase: Phase
    tokens: int | None = None
    estimated: bool = False
    """The tokens are counted by the size of the answer."""
    tokens_per_second: float | None = None
    prompt_processed: int | None = None
    prompt_total: int | None = None
    slot: int | None = None


def progress_of(held: Held | None, answer: AnswerSoFar, slot: EngineSlot | None = None, *, streams: bool) -> Progress:
    """Return how far a request is that is ``held`` before any engine, or has this of its answer."""
    if held is not None:
        return Progress(phase=held)
    record = _last_record(answer.latest)
    if (reading := _reading(record)) is not None:
        number = slot.id if slot is not None else None
        return Progress(phase="prompt", prompt_processed=reading.processed, prompt_total=reading.total, slot=number)
    if answer.seconds is None and (slot is None or not slot.decoded):
        return _unanswered(slot, streams=streams)
    tokens, rate, estimated = _spoken(answer, record, slot)
    return Progress(
        phase="answering",
        tokens=tokens,
        estimated=estimated,
        tokens_per_second=rate,
        slot=slot.id if slot is not None else None,
    )


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


class _Told(Struct, frozen=True):
    prompt_progress: _Reading | None = None


_TOLD = msgspec.json.Decoder(_Told)
_RECORD = re.compile(rb"^data: ?", re.MULTILINE)


def _last_record(latest: bytes) -> bytes:
    """The data of the last whole line that has some."""
    whole = latest[: latest.rfind(b"\n") + 1]
    at = max(whole.rfind(b"\ndata:"), 0 if whole.startswith(b"data:") else -1)
    return whole[at:].lstrip(b"\n").partition(b"\n")[0][5:] if at >= 0 else b""


def _reading(record: bytes) -> _Reading | None:
    """How much of the prompt is read; None where the record is about something else."""
    if b'"prompt_progress"' not in record:
        return None
    told = decoded(_TOLD, record)
    return told.prompt_progress if told is not None else None


def _unanswered(slot: EngineSlot | None, *, streams: bool) -> Progress:
    if slot is None or slot.decoded is None:
        phase: Phase = "prompt" if streams else "working"
        return Progress(phase=phase, slot=slot.id if slot is not None else None)
    return Progress(phase="prompt", prompt_processed=slot.n_prompt_tokens, slot=slot.id)


def _spoken(answer: AnswerSoFar, record: bytes, slot: EngineSlot | None) -> tuple[int | None, float | None, bool]:
    """The tokens of the answer, how many come in a second, and whether they are estimated."""
    ledger = Ledger()
    ledger.record(record)
    said = ledger.balance().tokens
    tokens = said.output_tokens if said.output_tokens > 0 else None
    if tokens is None and slot is not None:
        tokens = slot.decoded or None  # it was asked a moment ago, perhaps before the first token
    estimated = tokens is None
    if estimated:
        tokens = _estimated(answer)
    rate = said.tokens_per_second if said.tokens_per_second > 0 else None
    if rate is None and tokens and answer.seconds:
        rate = tokens / answer.seconds
    return tokens, rate, estimated and tokens is not None


def _estimated(answer: AnswerSoFar) -> int | None:
    """As many as the records that the answer has, if all are as long as the latest ones: engines write one a token."""
    begins = [found.start() for found in _RECORD.finditer(answer.latest)]
    if len(begins) <= 1:
        return len(begins) or None  # the length of a record is known once the next one begins
    return round(answer.size * (len(begins) - 1) / (begins[-1] - begins[0]))
